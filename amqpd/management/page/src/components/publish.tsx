import { post } from "../api/client";
import { Field, fieldObject, fieldText, Form } from "./form";
import { notify } from "./notices";

const TEXT_PROPERTIES = ["content_type", "content_encoding", "correlation_id", "reply_to", "expiration", "message_id", "type", "app_id"] as const;

export function PublishForm({ vhost, exchange, queue }: { vhost: string; exchange: string; queue?: string }) {
  const submit = async (fields: FormData): Promise<void> => {
    const properties: Record<string, unknown> = {};
    for (const name of TEXT_PROPERTIES) {
      const value = fieldText(fields, name);
      if (value) properties[name] = value;
    }
    const headers = fieldObject(fields, "headers", "Headers");
    if (Object.keys(headers).length) properties["headers"] = headers;
    if (fieldText(fields, "priority")) properties["priority"] = Number(fieldText(fields, "priority"));
    properties["delivery_mode"] = fields.has("persistent") ? 2 : 1;
    const answer = await post<{ routed: boolean }>(
      "/api/exchanges/{vhost}/{exchange}/publish",
      { vhost, exchange: exchange || "amq.default" },
      { routing_key: queue ?? fieldText(fields, "routing_key"), payload: fieldText(fields, "payload"), payload_encoding: fieldText(fields, "encoding"), properties },
    );
    if (answer.routed) notify("Published. Every queue that received the message has stored it.");
    else notify("No queue received the message: no binding matches its routing key.", "bad");
  };
  return (
    <Form action="Publish" submit={submit}>
      {queue === undefined && (
        <Field label="Routing key">
          <input name="routing_key" autocomplete="off" />
        </Field>
      )}
      <Field label="Payload">
        <textarea name="payload" class="code" spellcheck={false} rows={6} />
      </Field>
      <div class="fields">
        <Field label="Payload encoding">
          <select name="encoding">
            <option value="string">text (UTF-8)</option>
            <option value="base64">base64</option>
          </select>
        </Field>
        <label class="checkbox field">
          <input type="checkbox" name="persistent" checked /> persistent
        </label>
      </div>
      <Field label="Headers" hint='A JSON object: {"customer": "acme"}'>
        <textarea name="headers" class="code" spellcheck={false} rows={2} />
      </Field>
      <details>
        <summary>Other properties</summary>
        <div class="fields">
          {TEXT_PROPERTIES.map((name) => (
            <Field key={name} label={name.replace("_", " ")} {...(name === "expiration" ? { hint: "milliseconds" } : {})}>
              <input name={name} autocomplete="off" />
            </Field>
          ))}
          <Field label="priority">
            <input name="priority" type="number" min={0} max={255} />
          </Field>
        </div>
      </details>
    </Form>
  );
}
