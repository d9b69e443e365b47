// Looking at messages where they lie: none is taken, marked or moved.
import { useEffect, useRef, useState } from "preact/hooks";
import type { components } from "../api/schema";
import { get } from "../api/client";
import { Dialog } from "../parts/dialog";
import { Field, Form, text } from "../parts/form";
import { Rows, type Column } from "../parts/list";
import { MessageView, preview, type Message } from "../parts/message";
import { bytes, count, moment } from "../parts/numbers";
import { Badge, exchangeName, Failure, Name, Section } from "../parts/text";

type Messages = components["schemas"]["Messages"];

const LIST_BYTES = 400;
const WHOLE_BYTES = 1 << 20;
const COUNT = 50;

export interface Of {
  vhost: string;
  queue: string;
}

/** What is asked for; offset goes on. */
interface Wanted {
  offset?: number;
  time?: string;
  where?: string;
}

export function Browse({ of }: { of: Of }) {
  const [from, setFrom] = useState("front");
  const [wanted, setWanted] = useState<Wanted>({});
  const [page, setPage] = useState<Messages>();
  const [error, setError] = useState<unknown>();
  const [open, setOpen] = useState<Message>();
  const broken = useRef<AbortController>();
  useEffect(() => () => broken.current?.abort(), []);
  /** What was asked before ends with it. */
  const ask = async (asked: Wanted): Promise<void> => {
    broken.current?.abort();
    const own = (broken.current = new AbortController());
    setError(undefined);
    try {
      await look(asked, own.signal);
    } catch (failed) {
      if (!own.signal.aborted) throw failed;
    }
  };
  const look = async (asked: Wanted, signal: AbortSignal): Promise<void> => {
    let got: Messages;
    let offset = asked.offset;
    const messages: Message[] = [];
    do {
      // A page ends after a second of looking: on until there is something to see, or nothing more.
      got = await get("/api/queues/{vhost}/{queue}/messages", { ...of }, { ...asked, offset, time: offset === undefined ? asked.time : undefined, count: COUNT - messages.length, truncate: LIST_BYTES }, signal);
      if (signal.aborted) return;
      messages.push(...got.messages);
      offset = got.next_offset;
      setPage({ ...got, messages: [...messages] });
    } while (!got.ended && messages.length < COUNT);
  };
  const send = async (fields: FormData): Promise<void> => {
    const where = text(fields, "where").trim();
    const asked: Wanted = where ? { where } : {};
    if (from === "offset") asked.offset = Number(text(fields, "offset"));
    if (from === "time") asked.time = String(new Date(text(fields, "time")).getTime());
    setWanted(asked);
    setPage(undefined);
    await ask(asked);
  };
  const next = (): void => {
    if (page) ask({ ...wanted, offset: page.next_offset }).catch(setError);
  };
  const show = (message: Message): void => {
    get("/api/queues/{vhost}/{queue}/messages", { ...of }, { offset: message.offset, count: 1, truncate: WHOLE_BYTES }).then(
      (found) => setOpen(found.messages.find((each) => each.offset === message.offset) ?? message),
      setError,
    );
  };
  const columns: Column<Message>[] = [
    { title: "Offset", number: true, cell: (each) => <button onClick={() => show(each)}>{count(each.offset)}</button> },
    { title: "Came", cell: (each) => <span class="moment">{moment(each.time)}</span> },
    { title: "State", cell: (each) => <Badge kind={each.state === "ready" ? "" : "warn"}>{each.state}</Badge> },
    { title: "Exchange", cell: (each) => <Name>{exchangeName(each.exchange)}</Name> },
    { title: "Routing key", cell: (each) => <Name>{each.routing_key}</Name> },
    { title: "Size", number: true, cell: (each) => bytes(each.payload_bytes) },
    { title: "Payload", cell: (each) => <code>{preview(each)}</code> },
  ];
  return (
    <Section title="Look at messages, without taking any">
      <Form action="Browse" send={send}>
        <div class="fields">
          <Field label="From">
            <select value={from} onChange={(event) => setFrom(event.currentTarget.value)}>
              <option value="front">the front of the queue</option>
              <option value="offset">an offset</option>
              <option value="time">a time</option>
            </select>
          </Field>
          {from === "offset" && (
            <Field label="Offset">
              <input name="offset" type="number" min={0} required />
            </Field>
          )}
          {from === "time" && (
            <Field label="Came at, or later" hint="Your local time">
              <input name="time" type="datetime-local" step={1} required />
            </Field>
          )}
          <Field label="Only where" hint="A selector: customer = 'acme' AND p.priority > 3">
            <input name="where" class="code" autocomplete="off" spellcheck={false} />
          </Field>
        </div>
      </Form>
      <Failure error={error} />
      {page && <Rows what="such messages" items={page.messages} columns={columns} idOf={(each) => String(each.offset)} />}
      {page?.hint && <p class="warning">{page.hint}</p>}
      {page && (
        <div class="buttons left">
          <button disabled={page.ended} onClick={next}>
            {page.ended ? "That was the end" : `Next ${COUNT}`}
          </button>
        </div>
      )}
      {open && (
        <Dialog wide title={`Message at offset ${count(open.offset)}`} onClose={() => setOpen(undefined)}>
          <MessageView of={open} vhost={of.vhost} queue={of.queue} />
        </Dialog>
      )}
    </Section>
  );
}
