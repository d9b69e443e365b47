// Looking at messages where they lie: none is taken, marked or moved.
import { useEffect, useRef, useState } from "preact/hooks";
import type { components } from "../api/schema";
import { get, sentence } from "../api/client";
import { Dialog } from "../components/dialog";
import { Field, Form, text } from "../components/form";
import { Rows, type Column } from "../components/paged-list";
import { notify } from "../components/notices";
import { MessageView, preview, type Message } from "../components/message";
import { bytes, count, moment } from "../components/format";
import { Badge, exchangeName, Failure, Name, Section } from "../components/elements";

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

export function Browse({ of, stream }: { of: Of; stream: boolean }) {
  const [tail, setTail] = useState(false);
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
    setTail(from === "tail");
    if (from === "tail") return;
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
    { title: "Offset", number: true, cell: (each) => <button onClick={() => show(each)} aria-label={`Open the message at offset ${count(each.offset)}`}>{count(each.offset)}</button> },
    { title: "Came", cell: (each) => <span class="moment">{moment(each.time)}</span> },
    { title: "State", cell: (each) => <Badge kind={each.state === "ready" ? "" : "warn"}>{each.state}</Badge> },
    { title: "Exchange", cell: (each) => <Name>{exchangeName(each.exchange)}</Name> },
    { title: "Routing key", cell: (each) => <Name>{each.routing_key}</Name> },
    { title: "Size", number: true, cell: (each) => bytes(each.payload_bytes) },
    { title: "Payload", cell: (each) => <code>{preview(each)}</code> },
  ];
  return (
    <Section title="Look at messages, without taking any">
      <Form action={from === "tail" ? "Watch" : "Browse"} send={send}>
        <div class="fields">
          <Field label="From">
            <select value={from} onChange={(event) => setFrom(event.currentTarget.value)}>
              <option value="front">the front of the queue</option>
              <option value="offset">an offset</option>
              <option value="time">a time</option>
              <option value="tail">now on, live</option>
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
      {tail && <Tail key={wanted.where ?? ""} of={of} where={wanted.where} stream={stream} columns={columns} onOpen={show} onClose={() => setTail(false)} />}
      {page && <Rows what="such messages" items={page.messages} columns={columns} idOf={(each) => String(each.offset)} onOpen={show} />}
      {page?.hint && <p class="warning">{page.hint}</p>}
      {page && (
        <div class="buttons left">
          <button disabled={page.ended} onClick={next}>
            {page.ended ? "That was the end" : `Next ${COUNT}`}
          </button>
          <Download of={of} wanted={wanted} />
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

const TAIL_MS = 1000;
const TAIL_LINES_MAX = 200;

interface TailProps {
  of: Of;
  where: string | undefined;
  stream: boolean;
  columns: Column<Message>[];
  onOpen: (message: Message) => void;
  onClose: () => void;
}

/** What comes from now on, the newest first. */
function Tail({ of, where, stream, columns, onOpen, onClose }: TailProps) {
  const [messages, setMessages] = useState<Message[]>([]);
  const [seen, setSeen] = useState(0);
  const [paused, setPaused] = useState(false);
  const [error, setError] = useState<unknown>();
  const next = useRef<number>();
  useEffect(() => {
    if (paused) return;
    const left = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const once = async (): Promise<void> => {
      try {
        next.current ??= await endOf(of, left.signal);
        const got = await get("/api/queues/{vhost}/{queue}/messages", { ...of }, { offset: next.current, where, count: COUNT, truncate: LIST_BYTES }, left.signal);
        next.current = got.next_offset;
        if (got.messages.length) {
          setMessages((before) => [...got.messages.toReversed(), ...before].slice(0, TAIL_LINES_MAX));
          setSeen((before) => before + got.messages.length);
        }
        setError(undefined);
        timer = setTimeout(() => void once(), got.ended ? TAIL_MS : 0);
      } catch (failed) {
        if (left.signal.aborted) return;
        setError(failed);
        timer = setTimeout(() => void once(), TAIL_MS);
      }
    };
    void once();
    return () => {
      left.abort();
      clearTimeout(timer);
    };
  }, [paused]);
  return (
    <>
      <div class="bar">
        <span class="grow" role="status">
          {paused ? "Paused" : "Watching"}: {count(seen)} came{seen > messages.length && `, the last ${count(messages.length)} are shown`}.
        </span>
        <button onClick={() => setPaused(!paused)}>{paused ? "Go on" : "Pause"}</button>
        <button onClick={onClose}>Stop watching</button>
      </div>
      {!stream && <p class="soft">A message that consumers take and ack within a second may not be seen here.</p>}
      <Failure error={error} />
      {messages.length > 0 && <Rows what="messages that came" items={messages} columns={columns} idOf={(each) => String(each.offset)} onOpen={onOpen} />}
    </>
  );
}

/** The offset of the next message that will come. */
async function endOf(of: Of, signal: AbortSignal): Promise<number> {
  const got = await get("/api/queues/{vhost}/{queue}/messages", { ...of }, { end: true }, signal);
  return got.next_offset;
}

const DOWNLOAD_BYTES_MAX = 256 << 20;
const DOWNLOAD_COUNT = 1000;

/** All that the search finds, as a file: a line of JSON for each message. */
function Download({ of, wanted }: { of: Of; wanted: Wanted }) {
  const [said, setSaid] = useState("");
  const running = useRef<AbortController>();
  useEffect(() => () => running.current?.abort(), []);
  const load = async (): Promise<void> => {
    const own = (running.current = new AbortController());
    const lines: string[] = [];
    let [size, several] = [0, 0];
    let { offset } = wanted;
    try {
      for (;;) {
        const got: Messages = await get("/api/queues/{vhost}/{queue}/messages", { ...of }, { ...wanted, offset, time: offset === undefined ? wanted.time : undefined, count: DOWNLOAD_COUNT }, own.signal);
        const text = got.messages.map((each) => `${JSON.stringify(each)}\n`).join("");
        size += text.length;
        several += got.messages.length;
        if (text) lines.push(text);
        offset = got.next_offset;
        setSaid(`${count(several)}, ${bytes(size)} so far`);
        if (got.ended || size > DOWNLOAD_BYTES_MAX) break;
      }
      save(`${of.queue}.jsonl`, lines);
      setSaid(size > DOWNLOAD_BYTES_MAX ? `${count(several)} are in the file; it ends before offset ${count(offset)}, as a page cannot hold more` : `${count(several)} are in the file`);
    } catch (error) {
      if (!own.signal.aborted) notify(sentence(error), "bad");
      setSaid("");
    }
    running.current = undefined;
  };
  return (
    <>
      <button onClick={() => (running.current ? (running.current.abort(), (running.current = undefined), setSaid("")) : void load())}>{running.current ? "Stop the download" : "Download all that match"}</button>
      <span class="soft" aria-live="polite">
        {said}
      </span>
    </>
  );
}

function save(name: string, lines: string[]): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob(lines, { type: "application/x-ndjson" }));
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}
