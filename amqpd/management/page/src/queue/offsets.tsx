// Offsets in a stream: of its present consumers, and those stored under names of consumers.
import { useState } from "preact/hooks";
import type { components } from "../api/schema";
import { get, put, remove } from "../api/client";
import { ConfirmDialog, DangerButton } from "../components/dialog";
import { ErrorMessage, Name, Section } from "../components/elements";
import { Field, fieldText, Form } from "../components/form";
import { formatCount, formatTime, plural } from "../components/format";
import { PagedList } from "../components/paged-list";
import { DataTable } from "../components/table";
import { usePoll } from "../shell/poll";
import type { QueueNames } from "./browse";

type Queue = components["schemas"]["Queue"];
type Consumer = components["schemas"]["Consumer"];

export function StreamOffsets({ queueNames, queue }: { queueNames: QueueNames; queue: Queue }) {
  const stored = usePoll((signal) => get("/api/queues/{vhost}/{queue}/offsets", { ...queueNames }, {}, signal), [queueNames.vhost, queueNames.queue]);
  const end = Math.max(1, ...(stored.data ?? []).map((each) => each.offset + each.lag));
  const first = Math.max(0, end - (queue.messages ?? end));
  const [newOffset, setNewOffset] = useState<{ name: string; offset: number }>();
  return (
    <>
      <Section title="Consumers">
        <PagedList<Consumer>
          noun="consumers"
          path="/api/queues/{vhost}/{queue}/consumers"
          names={{ ...queueNames }}
          query={{ columns: "consumer_tag,channel_details,stream" }}
          searchable="many"
          searchLabel="consumer tag"
          queryPrefix="readers."
          idOf={(each) => `${each.channel_details?.name}\0${each.consumer_tag}`}
          columns={[
            { title: "Consumer", cell: (each) => <Name>{each.stream?.name ?? each.consumer_tag}</Name> },
            { title: "Position", cell: (each) => each.stream && <ReaderPosition at={each.stream} messages={queue.messages ?? 0} /> },
            { title: "Offset", number: true, cell: (each) => formatCount(each.stream?.offset) },
            { title: "Lag", number: true, cell: (each) => formatCount(each.stream?.lag) },
          ]}
        />
      </Section>
      <Section title="Stored offsets">
        <ErrorMessage error={stored.error} />
        {stored.data && (
          <DataTable
            noun="stored offsets"
            items={stored.data}
            idOf={(each) => each.name}
            columns={[
              { title: "Name", cell: (each) => <Name>{each.name}</Name> },
              { title: "Position", cell: (each) => <PositionBar first={first} end={end} at={each.offset} /> },
              { title: "Next offset", number: true, cell: (each) => formatCount(each.offset) },
              { title: "Lag", number: true, cell: (each) => formatCount(each.lag) },
              { title: "Stored at", cell: (each) => formatTime(each.time) },
              {
                title: "",
                cell: (each) => (
                  <DangerButton
                    label="Delete"
                    title={`Delete the stored offset of ${each.name}?`}
                    preview={async () => ({ text: <p>The next consumer of this name starts where its x-stream-offset says, not at offset {formatCount(each.offset)}. Messages stay.</p>, action: "Delete the offset" })}
                    run={async () => {
                      await remove("/api/queues/{vhost}/{queue}/offsets/{name}", { ...queueNames, name: each.name });
                      return `The stored offset of ${each.name} was deleted.`;
                    }}
                    onDone={() => void stored.refresh()}
                  />
                ),
              },
            ]}
          />
        )}
        <details>
          <summary>Set an offset</summary>
          <Form action="Set the offset" submit={async (fields) => setNewOffset({ name: fieldText(fields, "name"), offset: Number(fieldText(fields, "offset")) })}>
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
      {newOffset && (
        <ConfirmDialog
          title={`Set the offset of ${newOffset.name}?`}
          preview={async () => {
            const before = stored.data?.find((each) => each.name === newOffset.name)?.offset;
            const rewound = before === undefined ? 0 : before - newOffset.offset;
            const effect = rewound > 0 ? `${plural(rewound, "message")} will be delivered again.` : rewound < 0 ? `${plural(-rewound, "message")} will be skipped.` : "";
            return { text: <p>Consumers of this name continue at offset {formatCount(newOffset.offset)}. {effect}</p>, action: "Set the offset" };
          }}
          run={async () => {
            await put("/api/queues/{vhost}/{queue}/offsets/{name}", { ...queueNames, name: newOffset.name }, { offset: newOffset.offset });
            return `${newOffset.name} continues at offset ${formatCount(newOffset.offset)}.`;
          }}
          onClose={(done) => {
            setNewOffset(undefined);
            if (done) void stored.refresh();
          }}
        />
      )}
    </>
  );
}

function ReaderPosition({ at: { offset, lag }, messages }: { at: NonNullable<Consumer["stream"]>; messages: number }) {
  if (offset === null) return <>not started</>;
  const end = offset + (lag ?? 0);
  return <PositionBar first={Math.max(0, end - messages)} end={end} at={offset} />;
}

/** A bar from the first message of the stream to its end, filled up to the offset. */
function PositionBar({ first, end, at }: { first: number; end: number; at: number }) {
  const share = end > first ? Math.min(1, Math.max(0, (at - first) / (end - first))) : 1;
  return (
    <svg class="position" viewBox="0 0 100 8" preserveAspectRatio="none" role="img" aria-label={`${Math.round(share * 100)} % of the stream read`}>
      <rect width="100" height="8" rx="2" class="position-whole" />
      <rect width={share * 100} height="8" rx="2" class="position-read" />
    </svg>
  );
}
