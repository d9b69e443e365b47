// One message: its payload as text, JSON or bytes, its properties and headers, and the way it has come.
import { useEffect, useRef, useState } from "preact/hooks";
import type { components } from "../api/schema";
import { get } from "../api/client";
import { formatJson } from "../api/json";
import { Badge, ErrorMessage, exchangeName, Facts, KeyValues, Name, NameLink, showInvisible } from "./elements";
import { formatBytes, formatCount, formatTime } from "./format";

export type Message = components["schemas"]["Message"];
type TraceMatch = components["schemas"]["Found"];
/** Of a message that was taken out, not looked at where it lies. */
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

/** The beginning of a payload in a line. */
export function preview(message: DisplayedMessage): string {
  return message.payload_encoding === "string" ? showInvisible(message.payload.slice(0, 120)) : `${formatBytes(message.payload_bytes)} that are no text`;
}

/** A text with its lines and tabs, and all else that is unseen made visible. */
function visibleLines(text: string): string {
  return text.split(/(\r?\n|\t)/).map((part, index) => (index % 2 ? part : showInvisible(part))).join("");
}

type PayloadFormat = "JSON" | "text" | "hex";

export function PayloadView({ of }: { of: DisplayedMessage }) {
  const json = jsonText(of);
  const forms: PayloadFormat[] = [...(json === undefined ? [] : (["JSON"] as const)), ...(of.payload_encoding === "string" ? (["text"] as const) : []), "hex"];
  const [chosen, setChosen] = useState<PayloadFormat>();
  const form = chosen && forms.includes(chosen) ? chosen : forms[0]!;
  const raw = bytesOf(of);
  const cut = of.payload_bytes > raw.length;
  return (
    <>
      <div class="bar">
        <div class="choice" role="group" aria-label="Payload shown as">
          {forms.map((each) => (
            <button key={each} aria-pressed={each === form} onClick={() => setChosen(each)}>
              {each}
            </button>
          ))}
        </div>
        <span class="soft">
          {formatBytes(of.payload_bytes)}
          {cut && `, of which the first ${formatBytes(raw.length)} are shown`}
          {form === "hex" && raw.length > HEX_BYTES_MAX && `, the first ${formatBytes(HEX_BYTES_MAX)} of them here`}
        </span>
      </div>
      <pre class={form === "hex" ? "hex" : ""} tabIndex={0} aria-label="Payload">
        {form === "hex" ? hexDump(raw) : visibleLines(form === "JSON" ? json! : of.payload)}
      </pre>
    </>
  );
}

export function MessageView({ of, vhost, queue }: { of: DisplayedMessage; vhost: string; queue: string }) {
  const { headers, ...properties } = of.properties as Record<string, unknown> & { headers?: Record<string, unknown> };
  return (
    <div class="stack">
      <Facts
        of={[
          ["Exchange", <NameLink path={["exchanges", vhost, of.exchange || "amq.default"]}>{exchangeName(of.exchange)}</NameLink>],
          ["Routing key", <Name>{of.routing_key}</Name>],
          ["Offset", of.offset === undefined ? undefined : formatCount(of.offset)],
          ["Came", of.time ? formatTime(of.time) : undefined],
          ["State", of.state && <Badge kind={of.state === "ready" ? "good" : "warn"}>{of.state}</Badge>],
          ["Redelivered", of.redelivered ? "yes: somebody may have had it" : "no"],
          ["Came back", of.delivery_count ? `${formatCount(of.delivery_count)} times` : undefined],
        ]}
      />
      <PayloadView of={of} />
      <h3>Headers</h3>
      <KeyValues of={headers ?? {}} />
      <h3>Properties</h3>
      <KeyValues of={properties} />
      <h3>Its way</h3>
      <MessageHistory of={of} headers={headers ?? {}} vhost={vhost} queue={queue} />
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

/** Whoever publishes can write anything there. */
const isDeath = (each: unknown): each is Death => typeof each === "object" && each !== null;

const DEATH_REASONS: Record<string, string> = {
  rejected: "a consumer rejected it",
  expired: "its time was over",
  maxlen: "the queue was full",
  delivery_limit: "it came back too often",
};

/** What its headers tell: where it died, was moved from, was delayed; and, when asked, where else it is. */
function MessageHistory({ of, headers, vhost, queue }: { of: DisplayedMessage; headers: Record<string, unknown>; vhost: string; queue: string }) {
  const deaths = Array.isArray(headers["x-death"]) ? (headers["x-death"] as unknown[]).filter(isDeath).toReversed() : [];
  const first = deaths[0];
  const source = headers["x-source-queue"];
  const id = of.properties["message_id"];
  return (
    <>
      <ol class="way">
        <li>
          Published to {exchangeName(String(first?.exchange ?? of.exchange))} with key <Name>{String(first?.["routing-keys"]?.[0] ?? of.routing_key)}</Name>.
        </li>
        {deaths.map((death, index) => (
          <li key={index}>
            In queue <NameLink path={["queues", vhost, String(death.queue ?? "")]}>{String(death.queue ?? "")}</NameLink> it ended {death.count && death.count > 1 ? `${formatCount(death.count)} times` : "once"}:{" "}
            {DEATH_REASONS[String(death.reason)] ?? String(death.reason)}.
          </li>
        ))}
        {typeof source === "string" && (
          <li>
            A job took it from queue <NameLink path={["queues", vhost, source]}>{source}</NameLink>, where its offset was {String(headers["x-source-offset"])}.
          </li>
        )}
        {headers["x-redrive-count"] !== undefined && <li>It was sent back {String(headers["x-redrive-count"])} times after it had died.</li>}
        {headers["x-delay"] !== undefined && <li>It was held back for {String(headers["x-delay"])} ms before.</li>}
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
  const broken = useRef(new AbortController());
  useEffect(() => () => broken.current.abort(), []);
  const look = async (): Promise<void> => {
    setState("looking");
    setError(undefined);
    try {
      let all: TraceMatch[] = [];
      let next: Record<string, string | number> | null = {};
      while (next !== null) {
        const answer: components["schemas"]["Trace"] = await get("/api/amqpd/trace/{vhost}", { vhost }, { id, ...next }, broken.current.signal);
        all = [...all, ...answer.found];
        setFound(all);
        next = answer.next ? { ...answer.next } : null;
      }
    } catch (failed) {
      if (broken.current.signal.aborted) return;
      setError(failed);
    }
    setState("done");
  };
  return (
    <>
      <button disabled={state === "looking"} onClick={() => void look()}>
        {state === "looking" ? "Looking through the queues …" : "Where else is a message with this id?"}
      </button>
      <ErrorMessage error={error} />
      <ul class="pairs" aria-live="polite">
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
        {state === "done" && found?.length === 0 && <li>Nowhere that you may look.</li>}
      </ul>
    </>
  );
}
