// A virtual host: its permissions, limits and settings; deleting it.
import { apiUrl, get, request } from "../api/client";
import { DangerButton, type Preview } from "../components/dialog";
import { ErrorMessage, Facts, Name, PageTitle, Section } from "../components/elements";
import { Form } from "../components/form";
import { formatBytes, formatCount, formatRate, plural } from "../components/format";
import { LimitForms } from "../components/limits";
import { notify } from "../components/notices";
import { Permissions } from "../components/permissions";
import type { PageProps } from "../shell/pages";
import { usePoll } from "../shell/poll";
import { loadVhosts, selectVhost } from "../shell/preferences";
import { href, navigate } from "../shell/router";
import { hasTag } from "../shell/session";
import { fieldsBody, type Vhost, VhostFields, VhostState } from "./vhosts";

interface VhostDetails {
  vhost: Vhost & { recv_oct_details?: { rate?: number }; send_oct_details?: { rate?: number } };
  limits: Record<string, number>;
}

const LIMITS = ["max-connections", "max-queues"];

export default function VhostPage({ names }: PageProps) {
  const vhost = names[0]!;
  const pathNames = { vhost };
  const administrator = hasTag("administrator");
  const ask = async (signal: AbortSignal): Promise<VhostDetails> => {
    const [found, limits] = await Promise.all([
      request<Vhost>("GET", apiUrl("/api/vhosts/{vhost}", pathNames), undefined, signal),
      request<{ value: Record<string, number> }[]>("GET", apiUrl("/api/vhost-limits/{vhost}", pathNames), undefined, signal),
    ]);
    return { vhost: found, limits: limits[0]?.value ?? {} };
  };
  const { data, error, refresh } = usePoll(ask, [vhost]);
  const reload = (): void => void refresh();
  return (
    <>
      <PageTitle kind="Virtual host" aside={administrator && data && <DeleteButton vhost={data.vhost} />}>
        {vhost}
      </PageTitle>
      <ErrorMessage error={error} />
      <div aria-busy={!data && error === undefined}>
        {data && (
          <>
            <Section title="Details">
              <Facts
                facts={[
                  ["Description", <Name>{data.vhost.description || "–"}</Name>],
                  ["State", <VhostState vhost={data.vhost} />],
                  ["Default queue type", data.vhost.default_queue_type],
                  ["Messages", `${formatCount(data.vhost.messages_ready)} ready, ${formatCount(data.vhost.messages_unacknowledged)} unacked`],
                  ["Rates in, out", `${formatRate(data.vhost.message_stats?.publish_details?.rate)}, ${formatRate(data.vhost.message_stats?.deliver_get_details?.rate)}`],
                  ["Bytes in, out", `${formatBytes(data.vhost.recv_oct_details?.rate)}/s, ${formatBytes(data.vhost.send_oct_details?.rate)}/s`],
                  ["Limits", administrator ? undefined : limitsText(data.limits)],
                ]}
              />
              <p class="buttons left">
                <VhostLink vhost={vhost} at="queues" />
                <VhostLink vhost={vhost} at="exchanges" />
                <VhostLink vhost={vhost} at="connections" />
                <VhostLink vhost={vhost} at="topology" />
              </p>
            </Section>
            {administrator && (
              <>
                <Section title="Permissions">
                  <Permissions vhost={vhost} />
                </Section>
                <div class="columns">
                  <Section title="Limits">
                    <LimitForms limits={data.limits} names={LIMITS} path="/api/vhost-limits/{vhost}/{name}" pathNames={pathNames} onDone={reload} />
                  </Section>
                  <Section title="Settings">
                    <SettingsForm vhost={data.vhost} onDone={reload} />
                  </Section>
                </div>
              </>
            )}
          </>
        )}
      </div>
    </>
  );
}

function limitsText(limits: Record<string, number>): string {
  const found = Object.entries(limits).map(([name, value]) => `${name} ${formatCount(value)}`);
  return found.join(", ") || "none";
}

/** A link to a list, limited to this virtual host. */
function VhostLink({ vhost, at }: { vhost: string; at: string }) {
  return (
    <a href={href([at])} onClick={() => selectVhost(vhost)}>
      {at[0]!.toUpperCase() + at.slice(1)}
    </a>
  );
}

function SettingsForm({ vhost, onDone }: { vhost: Vhost; onDone: () => void }) {
  const submit = async (fields: FormData): Promise<void> => {
    const body = { ...fieldsBody(fields), protected_from_deletion: fields.has("protected"), tracing: fields.has("tracing") };
    await request("PUT", apiUrl("/api/vhosts/{vhost}", { vhost: vhost.name }), body);
    notify("The settings were saved.");
    onDone();
  };
  return (
    <Form key={JSON.stringify([vhost.description, vhost.tags, vhost.default_queue_type, vhost.protected_from_deletion, vhost.tracing])} action="Save the settings" submit={submit}>
      <VhostFields vhost={vhost} />
      <label class="checkbox">
        <input type="checkbox" name="protected" defaultChecked={vhost.protected_from_deletion} /> protected from deletion
      </label>
      <label class="checkbox">
        <input type="checkbox" name="tracing" defaultChecked={vhost.tracing} /> tracing: every publish and delivery is copied to amq.rabbitmq.trace, which slows the broker down
      </label>
    </Form>
  );
}

function DeleteButton({ vhost }: { vhost: Vhost }) {
  const names = { vhost: vhost.name };
  const preview = async (): Promise<Preview> => {
    const [now, queues, connections] = await Promise.all([
      request<Vhost>("GET", apiUrl("/api/vhosts/{vhost}", names)),
      request<{ total_count: number }>("GET", apiUrl("/api/queues/{vhost}", names, { page: 1, page_size: 1, columns: "name" })),
      get("/api/vhosts/{vhost}/connections", names, { columns: "name" }) as Promise<unknown>,
    ]);
    if (now.protected_from_deletion) {
      return { text: <p>The virtual host is protected from deletion. Remove the protection in its settings first.</p>, action: "Delete", nothingToDo: true };
    }
    const open = (connections as unknown[]).length;
    return {
      text: (
        <>
          <p>
            The virtual host <Name>{vhost.name}</Name> is deleted with everything in it, and this cannot be undone. At present it has:
          </p>
          <ul class="bullets">
            <li>{plural(queues.total_count, "queue")}</li>
            <li>{plural(now.messages, "message")}</li>
            <li>{plural(open, "connection")}, which will be closed</li>
          </ul>
        </>
      ),
      action: now.messages ? `Delete with ${plural(now.messages, "message")}` : "Delete the virtual host",
    };
  };
  const run = async (): Promise<string> => {
    await request("DELETE", apiUrl("/api/vhosts/{vhost}", names));
    void loadVhosts();
    navigate(["vhosts"]);
    return `The virtual host ${vhost.name} was deleted.`;
  };
  return <DangerButton label="Delete" title="Delete the virtual host?" preview={preview} run={run} />;
}
