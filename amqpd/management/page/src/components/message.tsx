// One message: its payload as text, JSON or bytes, its properties and headers, and the way it has come.
import { useEffect, useRef, useState } from "preact/hooks";
import type { components } from "../api/schema";
import { get } from "../api/client";
import { pretty } from "../api/json";
import { bytes, count, moment } from "./format";
import { Badge, exchangeName, Facts, Failure, Name, Table, To, visible } from "./elements";

export type Message = components["schemas"]["Message"];
type Found = components["schemas"]["Found"];
/** Of a message that was taken out, not looked at where it lies. */
export type Shown = Omit<Message, "offset" | "time" | "state" | "delivery_count"> & Partial<Message>;

const HEX_BYTES_MAX = 16384;
const LINE = 16;

export function bytesOf(message: Shown): Uint8Array {
  if (message.payload_encoding === "string") return new TextEncoder().encode(message.payload);
  return Uint8Array.from(atob(message.payload), (sign) => sign.charCodeAt(0));
}

function hex(from: Uint8Array): string {
  const lines: string[] = [];
  for (let at = 0; at < Math.min(from.length, HEX_BYTES_MAX); at += LINE) {
    const part = [...from.subarray(at, at + LINE)];
    const codes = part.map((each) => each.toString(16).padStart(2, "0")).join(" ");
    const signs = part.map((each) => (each >= 32 && each < 127 ? String.fromCharCode(each) : ".")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${codes.padEnd(LINE * 3)} ${signs}`);
  }
  return lines.join("\n");
}

function asJson(message: Shown): string | undefined {
  if (message.payload_encoding !== "string" || !/^\s*[[{"\d-]/.test(message.payload)) return undefined;
  return pretty(message.payload);
}

/** The beginning of a payload in a line. */
export function preview(message: Shown): string {
  return message.payload_encoding === "string" ? visible(message.payload.slice(0, 120)) : `${bytes(message.payload_bytes)} that are no text`;
}

/** A text with its lines and tabs, and all else that is unseen made visible. */
function lines(text: string): string {
  return text.split(/(\r?\n|\t)/).map((part, index) => (index % 2 ? part : visible(part))).join("");
}

type Form = "JSON" | "text" | "hex";

export function Payload({ of }: { of: Shown }) {
  const json = asJson(of);
  const forms: Form[] = [...(json === undefined ? [] : (["JSON"] as const)), ...(of.payload_encoding === "string" ? (["text"] as const) : []), "hex"];
  const [chosen, setChosen] = useState<Form>();
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
          {bytes(of.payload_bytes)}
          {cut && `, of which the first ${bytes(raw.length)} are shown`}
          {form === "hex" && raw.length > HEX_BYTES_MAX && `, the first ${bytes(HEX_BYTES_MAX)} of them here`}
        </span>
      </div>
      <pre class={form === "hex" ? "hex" : ""} tabIndex={0} aria-label="Payload">
        {form === "hex" ? hex(raw) : lines(form === "JSON" ? json! : of.payload)}
      </pre>
    </>
  );
}

export function MessageView({ of, vhost, queue }: { of: Shown; vhost: string; queue: string }) {
  const { headers, ...properties } = of.properties as Record<string, unknown> & { headers?: Record<string, unknown> };
  return (
    <div class="stack">
      <Facts
        of={[
          ["Exchange", <To path={["exchanges", vhost, of.exchange || "amq.default"]}>{exchangeName(of.exchange)}</To>],
          ["Routing key", <Name>{of.routing_key}</Name>],
          ["Offset", of.offset === undefined ? undefined : count(of.offset)],
          ["Came", of.time ? moment(of.time) : undefined],
          ["State", of.state && <Badge kind={of.state === "ready" ? "good" : "warn"}>{of.state}</Badge>],
          ["Redelivered", of.redelivered ? "yes: somebody may have had it" : "no"],
          ["Came back", of.delivery_count ? `${count(of.delivery_count)} times` : undefined],
        ]}
      />
      <Payload of={of} />
      <h3>Headers</h3>
      <Table of={headers ?? {}} />
      <h3>Properties</h3>
      <Table of={properties} />
      <h3>Its way</h3>
      <Way of={of} headers={headers ?? {}} vhost={vhost} queue={queue} />
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

const REASONS: Record<string, string> = {
  rejected: "a consumer rejected it",
  expired: "its time was over",
  maxlen: "the queue was full",
  delivery_limit: "it came back too often",
};

/** What its headers tell: where it died, was moved from, was delayed; and, when asked, where else it is. */
function Way({ of, headers, vhost, queue }: { of: Shown; headers: Record<string, unknown>; vhost: string; queue: string }) {
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
            In queue <To path={["queues", vhost, String(death.queue ?? "")]}>{String(death.queue ?? "")}</To> it ended {death.count && death.count > 1 ? `${count(death.count)} times` : "once"}:{" "}
            {REASONS[String(death.reason)] ?? String(death.reason)}.
          </li>
        ))}
        {typeof source === "string" && (
          <li>
            A job took it from queue <To path={["queues", vhost, source]}>{source}</To>, where its offset was {String(headers["x-source-offset"])}.
          </li>
        )}
        {headers["x-redrive-count"] !== undefined && <li>It was sent back {String(headers["x-redrive-count"])} times after it had died.</li>}
        {headers["x-delay"] !== undefined && <li>It was held back for {String(headers["x-delay"])} ms before.</li>}
        <li>
          It is in queue <Name>{queue}</Name>.
        </li>
      </ol>
      {typeof id === "string" && id && <Elsewhere id={id} vhost={vhost} />}
    </>
  );
}

function Elsewhere({ id, vhost }: { id: string; vhost: string }) {
  const [found, setFound] = useState<Found[]>();
  const [state, setState] = useState<"" | "looking" | "done">("");
  const [error, setError] = useState<unknown>();
  const broken = useRef(new AbortController());
  useEffect(() => () => broken.current.abort(), []);
  const look = async (): Promise<void> => {
    setState("looking");
    setError(undefined);
    try {
      let all: Found[] = [];
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
      <Failure error={error} />
      <ul class="pairs" aria-live="polite">
        {found?.map((each) => (
          <li key={`${each.queue}\0${each.offset}\0${each.state}`}>
            <To path={["queues", vhost, each.queue]}>{each.queue}</To>, offset {count(each.offset)}: <Badge>{each.state}</Badge>
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
