// Browsing messages without taking, marking or moving them; live view; download.
import { useEffect, useRef, useState } from "preact/hooks";
import type { components } from "../api/schema";
import { errorText, get } from "../api/client";
import { Dialog } from "../components/dialog";
import { Badge, ErrorMessage, exchangeName, Name, Section } from "../components/elements";
import { Field, fieldText, Form } from "../components/form";
import { formatBytes, formatCount, formatTime, plural } from "../components/format";
import { type Message, MessageView, payloadPreview } from "../components/message";
import { notify } from "../components/notices";
import { type Column, DataTable } from "../components/table";

type Messages = components["schemas"]["Messages"];

const LIST_PAYLOAD_BYTES = 400;
const PAYLOAD_BYTES_MAX = 1 << 20;
const PAGE_MESSAGES = 50;

export interface QueueNames {
  vhost: string;
  queue: string;
}

interface Search {
  offset?: number;
  time?: string;
  where?: string;
}

export function BrowseMessages({ queueNames, stream }: { queueNames: QueueNames; stream: boolean }) {
  const [tail, setTail] = useState(false);
  const [from, setFrom] = useState("front");
  const [search, setSearch] = useState<Search>({});
  const [page, setPage] = useState<Messages>();
  const [error, setError] = useState<unknown>();
  const [open, setOpen] = useState<Message>();
  const running = useRef<AbortController>();
  useEffect(() => () => running.current?.abort(), []);
  /** A new request aborts the previous one. */
  const ask = async (asked: Search): Promise<void> => {
    running.current?.abort();
    const controller = (running.current = new AbortController());
    setError(undefined);
    try {
      await fetchPage(asked, controller.signal);
    } catch (failed) {
      if (!controller.signal.aborted) throw failed;
    }
  };
  const fetchPage = async (asked: Search, signal: AbortSignal): Promise<void> => {
    let got: Messages;
    let offset = asked.offset;
    const messages: Message[] = [];
    do {
      // The broker answers after one second at most: continue until there are enough messages or the queue ends.
      got = await get("/api/queues/{vhost}/{queue}/messages", { ...queueNames }, { ...asked, offset, time: offset === undefined ? asked.time : undefined, count: PAGE_MESSAGES - messages.length, truncate: LIST_PAYLOAD_BYTES }, signal);
      if (signal.aborted) return;
      messages.push(...got.messages);
      offset = got.next_offset;
      setPage({ ...got, messages: [...messages] });
    } while (!got.ended && messages.length < PAGE_MESSAGES);
  };
  const submit = async (fields: FormData): Promise<void> => {
    const where = fieldText(fields, "where").trim();
    const newSearch: Search = where ? { where } : {};
    if (from === "offset") newSearch.offset = Number(fieldText(fields, "offset"));
    if (from === "time") newSearch.time = String(new Date(fieldText(fields, "time")).getTime());
    setSearch(newSearch);
    setPage(undefined);
    setTail(from === "tail");
    if (from === "tail") return;
    await ask(newSearch);
  };
  const fetchNext = (): void => {
    if (page) ask({ ...search, offset: page.next_offset }).catch(setError);
  };
  const show = (message: Message): void => {
    get("/api/queues/{vhost}/{queue}/messages", { ...queueNames }, { offset: message.offset, count: 1, truncate: PAYLOAD_BYTES_MAX }).then(
      (found) => setOpen(found.messages.find((each) => each.offset === message.offset) ?? message),
      setError,
    );
  };
  const columns: Column<Message>[] = [
    { title: "Offset", number: true, cell: (each) => <button onClick={() => show(each)} aria-label={`Open the message at offset ${formatCount(each.offset)}`}>{formatCount(each.offset)}</button> },
    { title: "Arrived", cell: (each) => <span class="moment">{formatTime(each.time)}</span> },
    { title: "State", cell: (each) => <Badge kind={each.state === "ready" ? "" : "warn"}>{each.state}</Badge> },
    { title: "Exchange", cell: (each) => <Name>{exchangeName(each.exchange)}</Name> },
    { title: "Routing key", cell: (each) => <Name>{each.routing_key}</Name> },
    { title: "Size", number: true, cell: (each) => formatBytes(each.payload_bytes) },
    { title: "Payload", cell: (each) => <code>{payloadPreview(each)}</code> },
  ];
  return (
    <Section title="Browse messages without taking them">
      <Form action={from === "tail" ? "Watch" : "Browse"} submit={submit}>
        <div class="fields">
          <Field label="From">
            <select value={from} onChange={(event) => setFrom(event.currentTarget.value)}>
              <option value="front">the front of the queue</option>
              <option value="offset">an offset</option>
              <option value="time">a time</option>
              <option value="tail">now, live</option>
            </select>
          </Field>
          {from === "offset" && (
            <Field label="Offset">
              <input name="offset" type="number" min={0} required />
            </Field>
          )}
          {from === "time" && (
            <Field label="Arrived at or after" hint="Your local time">
              <input name="time" type="datetime-local" step={1} required />
            </Field>
          )}
          <Field label="Selector" hint="Example: customer = 'acme' AND p.priority > 3">
            <input name="where" class="code" autocomplete="off" spellcheck={false} />
          </Field>
        </div>
      </Form>
      <ErrorMessage error={error} />
      {tail && <LiveMessages key={search.where ?? ""} queueNames={queueNames} where={search.where} stream={stream} columns={columns} onOpen={show} onClose={() => setTail(false)} />}
      {page && <DataTable noun="matching messages" items={page.messages} columns={columns} idOf={(each) => String(each.offset)} onOpen={show} />}
      {page?.hint && <p class="warning">{page.hint}</p>}
      {page && (
        <div class="buttons left">
          <button disabled={page.ended} onClick={fetchNext}>
            {page.ended ? "End of the queue" : `Next ${PAGE_MESSAGES}`}
          </button>
          <DownloadButton queueNames={queueNames} wanted={search} />
        </div>
      )}
      {open && (
        <Dialog wide title={`Message at offset ${formatCount(open.offset)}`} onClose={() => setOpen(undefined)}>
          <MessageView message={open} vhost={queueNames.vhost} queue={queueNames.queue} />
        </Dialog>
      )}
    </Section>
  );
}

const POLL_MS = 1000;
const LIVE_ROWS_MAX = 200;

interface LiveMessagesProps {
  queueNames: QueueNames;
  where: string | undefined;
  stream: boolean;
  columns: Column<Message>[];
  onOpen: (message: Message) => void;
  onClose: () => void;
}

function LiveMessages({ queueNames, where, stream, columns, onOpen, onClose }: LiveMessagesProps) {
  const [messages, setMessages] = useState<Message[]>([]);
  const [arrivedCount, setArrivedCount] = useState(0);
  const [paused, setPaused] = useState(false);
  const [error, setError] = useState<unknown>();
  const nextOffset = useRef<number>();
  useEffect(() => {
    if (paused) return;
    const controller = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const poll = async (): Promise<void> => {
      try {
        nextOffset.current ??= await fetchEndOffset(queueNames, controller.signal);
        const got = await get("/api/queues/{vhost}/{queue}/messages", { ...queueNames }, { offset: nextOffset.current, where, count: PAGE_MESSAGES, truncate: LIST_PAYLOAD_BYTES }, controller.signal);
        nextOffset.current = got.next_offset;
        if (got.messages.length) {
          setMessages((before) => [...got.messages.toReversed(), ...before].slice(0, LIVE_ROWS_MAX));
          setArrivedCount((before) => before + got.messages.length);
        }
        setError(undefined);
        timer = setTimeout(() => void poll(), got.ended ? POLL_MS : 0);
      } catch (failed) {
        if (controller.signal.aborted) return;
        setError(failed);
        timer = setTimeout(() => void poll(), POLL_MS);
      }
    };
    void poll();
    return () => {
      controller.abort();
      clearTimeout(timer);
    };
  }, [paused]);
  return (
    <>
      <div class="bar">
        <span class="grow" role="status">
          {paused ? "Paused" : "Watching"}: {plural(arrivedCount, "new message")}{arrivedCount > messages.length && `, the last ${formatCount(messages.length)} are shown`}.
        </span>
        <button onClick={() => setPaused(!paused)}>{paused ? "Resume" : "Pause"}</button>
        <button onClick={onClose}>Stop watching</button>
      </div>
      {!stream && <p class="muted">The page asks once a second, so it may miss a message that a consumer acks faster.</p>}
      <ErrorMessage error={error} />
      {messages.length > 0 && <DataTable noun="new messages" items={messages} columns={columns} idOf={(each) => String(each.offset)} onOpen={onOpen} />}
    </>
  );
}

async function fetchEndOffset(queueNames: QueueNames, signal: AbortSignal): Promise<number> {
  const got = await get("/api/queues/{vhost}/{queue}/messages", { ...queueNames }, { end: true }, signal);
  return got.next_offset;
}

const DOWNLOAD_BYTES_MAX = 256 << 20;
const DOWNLOAD_COUNT = 1000;

/** Downloads all matching messages, as one line of JSON each. */
function DownloadButton({ queueNames, wanted }: { queueNames: QueueNames; wanted: Search }) {
  const [status, setStatus] = useState("");
  const running = useRef<AbortController>();
  useEffect(() => () => running.current?.abort(), []);
  const load = async (): Promise<void> => {
    const controller = (running.current = new AbortController());
    const lines: string[] = [];
    let [size, number] = [0, 0];
    let { offset } = wanted;
    try {
      for (;;) {
        const got: Messages = await get("/api/queues/{vhost}/{queue}/messages", { ...queueNames }, { ...wanted, offset, time: offset === undefined ? wanted.time : undefined, count: DOWNLOAD_COUNT }, controller.signal);
        const text = got.messages.map((each) => `${JSON.stringify(each)}\n`).join("");
        size += text.length;
        number += got.messages.length;
        if (text) lines.push(text);
        offset = got.next_offset;
        setStatus(`${plural(number, "message")}, ${formatBytes(size)} so far`);
        if (got.ended || size > DOWNLOAD_BYTES_MAX) break;
      }
      save(`${queueNames.queue}.jsonl`, lines);
      setStatus(size > DOWNLOAD_BYTES_MAX ? `${formatCount(number)} are in the file. It ends before offset ${formatCount(offset)} because a page cannot hold more` : `${formatCount(number)} are in the file`);
    } catch (error) {
      if (!controller.signal.aborted) notify(errorText(error), "bad");
      setStatus("");
    }
    running.current = undefined;
  };
  return (
    <>
      <button onClick={() => (running.current ? (running.current.abort(), (running.current = undefined), setStatus("")) : void load())}>{running.current ? "Stop the download" : "Download all matching messages"}</button>
      <span class="muted" aria-live="polite">
        {status}
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
