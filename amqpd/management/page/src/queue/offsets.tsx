// A stream's consumers and where each is: those that read now, and the names under which a place is stored.
import { useState } from "preact/hooks";
import type { components } from "../api/schema";
import { get, put, remove } from "../api/client";
import { Confirm, Danger } from "../components/dialog";
import { Field, Form, text } from "../components/form";
import { List, Rows } from "../components/paged-list";
import { count, moment, plural } from "../components/format";
import { Failure, Name, Section } from "../components/elements";
import { usePoll } from "../shell/poll";
import type { Of } from "./browse";

type Queue = components["schemas"]["Queue"];
type Consumer = components["schemas"]["Consumer"];

export function Places({ of, queue }: { of: Of; queue: Queue }) {
  const stored = usePoll((signal) => get("/api/queues/{vhost}/{queue}/offsets", { ...of }, {}, signal), [of.vhost, of.queue]);
  const end = Math.max(1, ...(stored.data ?? []).map((each) => each.offset + each.lag));
  const first = Math.max(0, end - (queue.messages ?? end));
  const [wanted, setWanted] = useState<{ name: string; offset: number }>();
  return (
    <>
      <Section title="Who reads now, and where">
        <List<Consumer>
          what="readers"
          path="/api/queues/{vhost}/{queue}/consumers"
          names={{ ...of }}
          query={{ columns: "consumer_tag,channel_details,stream" }}
          searched="many"
          by="consumer tag"
          as="readers."
          idOf={(each) => `${each.channel_details?.name}\0${each.consumer_tag}`}
          columns={[
            { title: "Consumer", cell: (each) => <Name>{each.stream?.name ?? each.consumer_tag}</Name> },
            { title: "Where", cell: (each) => each.stream && <Reader at={each.stream} messages={queue.messages ?? 0} /> },
            { title: "Offset", number: true, cell: (each) => count(each.stream?.offset) },
            { title: "Behind", number: true, cell: (each) => count(each.stream?.lag) },
          ]}
        />
      </Section>
      <Section title="Stored places">
        <Failure error={stored.error} />
        {stored.data && (
          <Rows
            what="stored places"
            items={stored.data}
            idOf={(each) => each.name}
            columns={[
              { title: "Name", cell: (each) => <Name>{each.name}</Name> },
              { title: "Where", cell: (each) => <Bar first={first} end={end} at={each.offset} /> },
              { title: "Next offset", number: true, cell: (each) => count(each.offset) },
              { title: "Behind", number: true, cell: (each) => count(each.lag) },
              { title: "Stored", cell: (each) => moment(each.time) },
              {
                title: "",
                cell: (each) => (
                  <Danger
                    label="Forget"
                    title={`Forget the place of ${each.name}?`}
                    look={async () => ({ text: <p>The next consumer of that name begins where its own argument says, not at offset {count(each.offset)}. No message is touched.</p>, action: "Forget the place" })}
                    run={async () => {
                      await remove("/api/queues/{vhost}/{queue}/offsets/{name}", { ...of, name: each.name });
                      return `The place of ${each.name} is forgotten.`;
                    }}
                    onDone={() => void stored.refresh()}
                  />
                ),
              },
            ]}
          />
        )}
        <details>
          <summary>Set a place</summary>
          <Form action="Set the place" send={async (fields) => setWanted({ name: text(fields, "name"), offset: Number(text(fields, "offset")) })}>
            <div class="fields">
              <Field label="Name">
                <input name="name" required autocomplete="off" />
              </Field>
              <Field label="Next offset">
                <input name="offset" type="number" min={0} required />
              </Field>
            </div>
          </Form>
        </details>
      </Section>
      {wanted && (
        <Confirm
          title={`Set the place of ${wanted.name}?`}
          look={async () => {
            const before = stored.data?.find((each) => each.name === wanted.name)?.offset;
            const again = before === undefined ? 0 : before - wanted.offset;
            const then = again > 0 ? `${plural(again, "message")} will come to it again.` : again < 0 ? `${plural(-again, "message")} will never come to it.` : "";
            return { text: <p>Consumers of that name get offset {count(wanted.offset)} next. {then}</p>, action: "Set the place" };
          }}
          run={async () => {
            await put("/api/queues/{vhost}/{queue}/offsets/{name}", { ...of, name: wanted.name }, { offset: wanted.offset });
            return `${wanted.name} goes on at offset ${count(wanted.offset)}.`;
          }}
          onClose={(done) => {
            setWanted(undefined);
            if (done) void stored.refresh();
          }}
        />
      )}
    </>
  );
}

function Reader({ at: { offset, lag }, messages }: { at: NonNullable<Consumer["stream"]>; messages: number }) {
  if (offset === null) return <>not begun</>;
  const end = offset + (lag ?? 0);
  return <Bar first={Math.max(0, end - messages)} end={end} at={offset} />;
}

/** The stream from its first message to its end, and the place in it. */
function Bar({ first, end, at }: { first: number; end: number; at: number }) {
  const share = end > first ? Math.min(1, Math.max(0, (at - first) / (end - first))) : 1;
  return (
    <svg class="place" viewBox="0 0 100 8" preserveAspectRatio="none" role="img" aria-label={`${Math.round(share * 100)} % of the way to the end`}>
      <rect width="100" height="8" rx="2" class="whole" />
      <rect width={share * 100} height="8" rx="2" class="read" />
    </svg>
  );
}
