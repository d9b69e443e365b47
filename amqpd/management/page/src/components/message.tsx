import { useEffect, useRef, useState } from "preact/hooks";
import type { components } from "../api/schema";
import { get } from "../api/client";
import { formatJson } from "../api/json";
import { Badge, ErrorMessage, exchangeName, Facts, KeyValues, Name, NameLink, showInvisible } from "./elements";
import { formatBytes, formatCount, formatTime } from "./format";

export type Message = components["schemas"]["Message"];
type TraceMatch = components["schemas"]["LocatedMessage"];
/** A message from Get, without the fields of a browsed one. */
export type DisplayedMessage = Omit<Message, "offset" | "time" | "state" | "delivery_count"> & Partial<Message>;

const HEX_BYTES_MAX = 16384;
const BYTES_PER_LINE = 16;

export function bytesOf(message: DisplayedMessage): Uint8Array {
  if (message.payload_encoding === "string") return new TextEncoder().encode(message.payload);
  return Uint8Array.from(atob(message.payload), (sign) => sign.charCodeAt(0));
}

function hexDump(from: Uint8Array): string {
  const lines: string[] = [];
  for (let at = 0; at < Math.min(from.length, HEX_BYTES_MAX); at += BYTES_PER_LINE) {
    const part = [...from.subarray(at, at + BYTES_PER_LINE)];
    const codes = part.map((each) => each.toString(16).padStart(2, "0")).join(" ");
    const signs = part.map((each) => (each >= 32 && each < 127 ? String.fromCharCode(each) : ".")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${codes.padEnd(BYTES_PER_LINE * 3)} ${signs}`);
  }
  return lines.join("\n");
}

function jsonText(message: DisplayedMessage): string | undefined {
  if (message.payload_encoding !== "string" || !/^\s*[[{"\d-]/.test(message.payload)) return undefined;
  return formatJson(message.payload);
}

export function payloadPreview(message: DisplayedMessage): string {
  return message.payload_encoding === "string" ? showInvisible(message.payload.slice(0, 120)) : `${formatBytes(message.payload_bytes)} of binary data`;
}

/** Keep line breaks and tabs; show other invisible characters by their codes. */
function visibleLines(text: string): string {
  return text.split(/(\r?\n|\t)/).map((part, index) => (index % 2 ? part : showInvisible(part))).join("");
}

type PayloadFormat = "JSON" | "text" | "hex";

export function PayloadView({ message }: { message: DisplayedMessage }) {
  const json = jsonText(message);
  const forms: PayloadFormat[] = [...(json === undefined ? [] : (["JSON"] as const)), ...(message.payload_encoding === "string" ? (["text"] as const) : []), "hex"];
  const [chosen, setChosen] = useState<PayloadFormat>();
  const form = chosen && forms.includes(chosen) ? chosen : forms[0]!;
  const raw = bytesOf(message);
  const cut = message.payload_bytes > raw.length;
  return (
    <>
      <div class="bar">
        <div class="segments" role="group" aria-label="Payload shown as">
          {forms.map((each) => (
            <button key={each} aria-pressed={each === form} onClick={() => setChosen(each)}>
              {each}
            </button>
          ))}
        </div>
        <span class="muted">
          {formatBytes(message.payload_bytes)}
          {cut && `; the first ${formatBytes(raw.length)} are shown`}
          {form === "hex" && raw.length > HEX_BYTES_MAX && `; hex shows the first ${formatBytes(HEX_BYTES_MAX)}`}
        </span>
      </div>
      <pre class={form === "hex" ? "hex" : ""} tabIndex={0} aria-label="Payload">
        {form === "hex" ? hexDump(raw) : visibleLines(form === "JSON" ? json! : message.payload)}
      </pre>
    </>
  );
}

export function MessageView({ message, vhost, queue }: { message: DisplayedMessage; vhost: string; queue: string }) {
  const { headers, ...properties } = message.properties as Record<string, unknown> & { headers?: Record<string, unknown> };
  return (
    <div class="stack">
      <Facts
        facts={[
          ["Exchange", <NameLink path={["exchanges", vhost, message.exchange || "amq.default"]}>{exchangeName(message.exchange)}</NameLink>],
          ["Routing key", <Name>{message.routing_key}</Name>],
          ["Offset", message.offset === undefined ? undefined : formatCount(message.offset)],
          ["Arrived", message.time ? formatTime(message.time) : undefined],
          ["State", message.state && <Badge kind={message.state === "ready" ? "good" : "warn"}>{message.state}</Badge>],
          ["Redelivered", message.redelivered ? "yes: a consumer may have received it before" : "no"],
          ["Delivery count", message.delivery_count ? formatCount(message.delivery_count) : undefined],
        ]}
      />
      <PayloadView message={message} />
      <h3>Headers</h3>
      <KeyValues values={headers ?? {}} />
      <h3>Properties</h3>
      <KeyValues values={properties} />
      <h3>History</h3>
      <MessageHistory message={message} headers={headers ?? {}} vhost={vhost} queue={queue} />
    </div>
  );
}

interface Death {
  queue?: string;
  exchange?: string;
  reason?: string;
  count?: number;
  time?: number | string;
  "routing-keys"?: string[];
}

/** A publisher can write anything into x-death. */
const isDeath = (each: unknown): each is Death => typeof each === "object" && each !== null;

const DEATH_REASONS: Record<string, string> = {
  rejected: "a consumer rejected it",
  expired: "its time to live ended",
  maxlen: "the queue had reached its length limit",
  delivery_limit: "it reached the delivery limit",
};

/** What the headers say about deaths, moves and delays; on request, other queues with the same message id. */
function MessageHistory({ message, headers, vhost, queue }: { message: DisplayedMessage; headers: Record<string, unknown>; vhost: string; queue: string }) {
  const deaths = Array.isArray(headers["x-death"]) ? (headers["x-death"] as unknown[]).filter(isDeath).toReversed() : [];
  const first = deaths[0];
  const source = headers["x-source-queue"];
  const id = message.properties["message_id"];
  return (
    <>
      <ol class="message-history">
        <li>
          Published to {exchangeName(String(first?.exchange ?? message.exchange))} with key <Name>{String(first?.["routing-keys"]?.[0] ?? message.routing_key)}</Name>.
        </li>
        {deaths.map((death, index) => (
          <li key={index}>
            In queue <NameLink path={["queues", vhost, String(death.queue ?? "")]}>{String(death.queue ?? "")}</NameLink> it was dead-lettered {death.count && death.count > 1 ? `${formatCount(death.count)} times` : "once"}:{" "}
            {DEATH_REASONS[String(death.reason)] ?? String(death.reason)}.
          </li>
        ))}
        {typeof source === "string" && (
          <li>
            A job moved it from queue <NameLink path={["queues", vhost, source]}>{source}</NameLink>, offset {String(headers["x-source-offset"])}.
          </li>
        )}
        {headers["x-redrive-count"] !== undefined && <li>It was redriven (sent back to its queue) {String(headers["x-redrive-count"])} times.</li>}
        {headers["x-delay"] !== undefined && <li>It was delayed by {String(headers["x-delay"])} ms.</li>}
        <li>
          It is in queue <Name>{queue}</Name>.
        </li>
      </ol>
      {typeof id === "string" && id && <MessageTrace id={id} vhost={vhost} />}
    </>
  );
}

function MessageTrace({ id, vhost }: { id: string; vhost: string }) {
  const [found, setFound] = useState<TraceMatch[]>();
  const [state, setState] = useState<"" | "looking" | "done">("");
  const [error, setError] = useState<unknown>();
  const abort = useRef(new AbortController());
  useEffect(() => () => abort.current.abort(), []);
  const trace = async (): Promise<void> => {
    setState("looking");
    setError(undefined);
    try {
      let all: TraceMatch[] = [];
      let next: Record<string, string | number> | null = {};
      while (next !== null) {
        const answer: components["schemas"]["Trace"] = await get("/api/amqpd/trace/{vhost}", { vhost }, { id, ...next }, abort.current.signal);
        all = [...all, ...answer.found];
        setFound(all);
        next = answer.next ? { ...answer.next } : null;
      }
    } catch (failed) {
      if (abort.current.signal.aborted) return;
      setError(failed);
    }
    setState("done");
  };
  return (
    <>
      <button disabled={state === "looking"} onClick={() => void trace()}>
        {state === "looking" ? "Searching the queues …" : "Find this message id in other queues"}
      </button>
      <ErrorMessage error={error} />
      <ul class="key-values" aria-live="polite">
        {found?.map((each) => (
          <li key={`${each.queue}\0${each.offset}\0${each.state}`}>
            <NameLink path={["queues", vhost, each.queue]}>{each.queue}</NameLink>, offset {formatCount(each.offset)}: <Badge>{each.state}</Badge>
            {each.connection && (
              <>
                {" "}
                with <Name>{each.connection}</Name>
              </>
            )}
          </li>
        ))}
        {state === "done" && found?.length === 0 && <li>Not found in any queue that you can read.</li>}
      </ul>
    </>
  );
}
