// Bindings of a queue or an exchange, which may be ten thousand: shown, added, taken away.
import type { components } from "../api/schema";
import { post, remove, type Names } from "../api/client";
import { Danger } from "./dialog";
import { Field, Form, object, text } from "./form";
import { List, type Column } from "./paged-list";
import { notify } from "./notices";
import { exchangeName, Name, Table, To } from "./elements";

export type Binding = components["schemas"]["Binding"];

interface BindingsProps {
  /** Of the API, with names in braces. */
  path: string;
  of: Names;
  /** Which end is listed; the other one is the page's own thing. */
  shown: "source" | "destination";
  /** Another value asks anew. */
  version: number;
  onChange: () => void;
  mayChange: boolean;
}

const inPath = (name: string): string => name || "amq.default";

function names(of: Binding): Record<string, string> {
  return { vhost: of.vhost, exchange: inPath(of.source), queue: of.destination, target: of.destination, props: of.properties_key };
}

export function Bindings({ path, of, shown, version, onChange, mayChange }: BindingsProps) {
  const columns: Column<Binding>[] = [
    shown === "source"
      ? { title: "From exchange", sort: "source", cell: (each) => <To path={["exchanges", each.vhost, inPath(each.source)]}>{exchangeName(each.source)}</To> }
      : {
          title: "To",
          sort: "destination",
          cell: (each) => (
            <>
              {each.destination_type} <To path={[each.destination_type === "queue" ? "queues" : "exchanges", each.vhost, each.destination]}>{each.destination}</To>
            </>
          ),
        },
    { title: "Routing key", sort: "routing_key", cell: (each) => <Name>{each.routing_key}</Name> },
    { title: "Arguments", cell: (each) => <Table of={each.arguments} none="" /> },
    {
      title: "",
      cell: (each) =>
        each.source === "" ? (
          <span class="soft">always there</span>
        ) : (
          <Danger
            label="Unbind"
            disabled={!mayChange}
            title={`Take the binding from ${exchangeName(each.source)} away?`}
            look={async () => ({
              text: (
                <p>
                  Messages that {exchangeName(each.source)} gets with <Name>{each.routing_key}</Name> no longer go to {each.destination_type} <Name>{each.destination}</Name> by
                  this binding. No message that is there already is touched.
                </p>
              ),
              action: "Unbind",
            })}
            run={async () => {
              await remove(each.destination_type === "queue" ? "/api/bindings/{vhost}/e/{exchange}/q/{queue}/{props}" : "/api/bindings/{vhost}/e/{exchange}/e/{target}/{props}", names(each));
              return "The binding is gone.";
            }}
            onDone={onChange}
          />
        ),
    },
  ];
  return (
    <List<Binding>
      what="bindings"
      path={path}
      names={of}
      columns={columns}
      idOf={(each) => JSON.stringify([each.source, each.destination_type, each.destination, each.properties_key])}
      searched="many"
      by="name or routing key"
      as={shown === "source" ? "from-" : "to-"}
      version={version}
    />
  );
}

/** Binds the page's own thing to another one. */
export function Bind({ vhost, queue, exchange, onChange }: { vhost: string; queue?: string; exchange?: string; onChange: () => void }) {
  const send = async (fields: FormData): Promise<void> => {
    const other = text(fields, "other");
    const body = { routing_key: text(fields, "key"), arguments: object(fields, "arguments", "Arguments") };
    if (queue !== undefined) await post("/api/bindings/{vhost}/e/{exchange}/q/{queue}", { vhost, exchange: other, queue }, body);
    else if (text(fields, "kind") === "queue") await post("/api/bindings/{vhost}/e/{exchange}/q/{queue}", { vhost, exchange: inPath(exchange!), queue: other }, body);
    else await post("/api/bindings/{vhost}/e/{exchange}/e/{target}", { vhost, exchange: inPath(exchange!), target: other }, body);
    notify("The binding is there.");
    onChange();
  };
  return (
    <details>
      <summary>{queue !== undefined ? "Bind this queue to an exchange" : "Bind something to this exchange"}</summary>
      <Form action="Bind" send={send} once>
        <div class="fields">
          {queue === undefined && (
            <Field label="What">
              <select name="kind">
                <option>queue</option>
                <option>exchange</option>
              </select>
            </Field>
          )}
          <Field label={queue !== undefined ? "Exchange" : "Its name"}>
            <input name="other" required autocomplete="off" />
          </Field>
          <Field label="Routing key">
            <input name="key" autocomplete="off" />
          </Field>
          <Field label="Arguments" hint="A JSON object, as a headers exchange takes it">
            <input name="arguments" class="code" autocomplete="off" spellcheck={false} />
          </Field>
        </div>
      </Form>
    </details>
  );
}
