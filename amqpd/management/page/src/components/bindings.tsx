// The bindings of a queue or exchange (there may be ten thousand), and the form that adds one.
import type { components } from "../api/schema";
import { type PathNames, post, remove } from "../api/client";
import { DangerButton } from "./dialog";
import { exchangeInPath, exchangeName, KeyValues, Name, NameLink } from "./elements";
import { Field, fieldObject, fieldText, Form } from "./form";
import { notify } from "./notices";
import { PagedList } from "./paged-list";
import type { Column } from "./table";

export type Binding = components["schemas"]["Binding"];

interface BindingsProps {
  path: string;
  pathNames: PathNames;
  /** The end of the bindings that is shown; the other end is the object of the page. */
  end: "source" | "destination";
  /** The list reloads when this changes. */
  version: number;
  onChange: () => void;
  canChange: boolean;
}

function bindingNames(binding: Binding): Record<string, string> {
  return { vhost: binding.vhost, exchange: exchangeInPath(binding.source), queue: binding.destination, target: binding.destination, props: binding.properties_key };
}

export function BindingList({ path, pathNames, end, version, onChange, canChange }: BindingsProps) {
  const columns: Column<Binding>[] = [
    end === "source"
      ? { title: "From exchange", sort: "source", cell: (each) => <NameLink path={["exchanges", each.vhost, exchangeInPath(each.source)]}>{exchangeName(each.source)}</NameLink> }
      : {
          title: "To",
          sort: "destination",
          cell: (each) => (
            <>
              {each.destination_type} <NameLink path={[each.destination_type === "queue" ? "queues" : "exchanges", each.vhost, each.destination]}>{each.destination}</NameLink>
            </>
          ),
        },
    { title: "Routing key", sort: "routing_key", cell: (each) => <Name>{each.routing_key}</Name> },
    { title: "Arguments", cell: (each) => <KeyValues values={each.arguments} none="" /> },
    {
      title: "",
      cell: (each) =>
        each.source === "" ? (
          <span class="muted">permanent</span>
        ) : (
          <DangerButton
            label="Unbind"
            disabled={!canChange}
            title={`Delete the binding from ${exchangeName(each.source)}?`}
            preview={async () => ({
              text: (
                <p>
                  This binding no longer routes messages with key <Name>{each.routing_key}</Name> from {exchangeName(each.source)} to {each.destination_type} <Name>{each.destination}</Name>.
                  Messages in queues stay.
                </p>
              ),
              action: "Unbind",
            })}
            run={async () => {
              await remove(each.destination_type === "queue" ? "/api/bindings/{vhost}/e/{exchange}/q/{queue}/{props}" : "/api/bindings/{vhost}/e/{exchange}/e/{target}/{props}", bindingNames(each));
              return "The binding was deleted.";
            }}
            onDone={onChange}
          />
        ),
    },
  ];
  return (
    <PagedList<Binding>
      noun="bindings"
      path={path}
      names={pathNames}
      columns={columns}
      idOf={(each) => JSON.stringify([each.source, each.destination_type, each.destination, each.properties_key])}
      searchable="many"
      searchLabel="name or routing key"
      queryPrefix={end === "source" ? "from-" : "to-"}
      version={version}
    />
  );
}

export function BindForm({ vhost, queue, exchange, onChange }: { vhost: string; queue?: string; exchange?: string; onChange: () => void }) {
  const submit = async (fields: FormData): Promise<void> => {
    const other = fieldText(fields, "other");
    const body = { routing_key: fieldText(fields, "key"), arguments: fieldObject(fields, "arguments", "Arguments") };
    if (queue !== undefined) await post("/api/bindings/{vhost}/e/{exchange}/q/{queue}", { vhost, exchange: other, queue }, body);
    else if (fieldText(fields, "kind") === "queue") await post("/api/bindings/{vhost}/e/{exchange}/q/{queue}", { vhost, exchange: exchangeInPath(exchange!), queue: other }, body);
    else await post("/api/bindings/{vhost}/e/{exchange}/e/{target}", { vhost, exchange: exchangeInPath(exchange!), target: other }, body);
    notify("The binding was created.");
    onChange();
  };
  return (
    <details>
      <summary>{queue !== undefined ? "Bind this queue to an exchange" : "Bind a queue or an exchange to this exchange"}</summary>
      <Form action="Bind" submit={submit} resetsOnSubmit>
        <div class="fields">
          {queue === undefined && (
            <Field label="Destination type">
              <select name="kind">
                <option>queue</option>
                <option>exchange</option>
              </select>
            </Field>
          )}
          <Field label={queue !== undefined ? "Exchange" : "Destination"}>
            <input name="other" required autocomplete="off" />
          </Field>
          <Field label="Routing key">
            <input name="key" autocomplete="off" />
          </Field>
          <Field label="Arguments" hint="A JSON object, for headers exchanges">
            <input name="arguments" class="code" autocomplete="off" spellcheck={false} />
          </Field>
        </div>
      </Form>
    </details>
  );
}
