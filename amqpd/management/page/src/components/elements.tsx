// Small pieces of text that every page has.
import type { ComponentChildren } from "preact";
import { sentence, Silence } from "../api/client";
import { href } from "../shell/router";

// Control characters, and what turns the direction of writing round or has no width.
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

/** A text from outside so that nothing in it is unseen or turns what stands beside it round. */
export function visible(text: string): string {
  return text.replace(UNSEEN, (sign) => `‹${sign.charCodeAt(0).toString(16).padStart(2, "0")}›`);
}

/** Spaces at its ends, which nobody would see, and of which a link of nothing else would be none. */
const spaced = (text: string): string => text.replace(/^ +| +$/g, (spaces) => "‹20›".repeat(spaces.length));

/** A name from outside: of a queue, a user, a header. */
export function Name({ children }: { children: string }) {
  return <bdi class="name">{children === "" ? <i>(empty)</i> : spaced(visible(children))}</bdi>;
}

/** A link to a thing's own page. */
export function To({ path, children, query }: { path: (string | number)[]; children: string; query?: Record<string, string> }) {
  return (
    <a href={href(path, query)}>
      <Name>{children}</Name>
    </a>
  );
}

export function exchangeName(name: string): string {
  return name || "(AMQP default)";
}

/** The heading of a page; kind: what the named thing is. */
export function Title({ kind, children, aside }: { kind?: string; children: string; aside?: ComponentChildren }) {
  return (
    <div class="title">
      <h1>
        {kind && <span class="kind">{kind} </span>}
        {kind ? <Name>{children}</Name> : children}
      </h1>
      {aside}
    </div>
  );
}

/** Why something cannot be shown. That the broker does not answer at all the shell says, for the whole page. */
export function Failure({ error }: { error: unknown }) {
  return error === undefined || error instanceof Silence ? null : (
    <p role="alert" class="failure">
      {sentence(error)}
    </p>
  );
}

/** A module of the page that cannot be had: the broker is away, or has another build of the page by now. */
export function Unfetched() {
  return (
    <div role="alert" class="failure">
      <p>This part of the page cannot be fetched: the broker is away, or has another version by now.</p>
      <button onClick={() => location.reload()}>Load the page anew</button>
    </div>
  );
}

export function Waiting() {
  return <p class="wait">Loading …</p>;
}

/** One word on its state. */
export function Badge({ kind = "", children, title }: { kind?: "" | "good" | "bad" | "warn"; children: ComponentChildren; title?: string }) {
  return (
    <span class={`badge ${kind}`} title={title}>
      {children}
    </span>
  );
}

/** What is known of a thing: names and values; those that are undefined are left out. */
export function Facts({ of }: { of: [string, ComponentChildren | undefined][] }) {
  return (
    <dl class="facts">
      {of
        .filter(([, value]) => value !== undefined)
        .map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
    </dl>
  );
}

/** Arguments, headers, definitions: any JSON object, a line for each key. */
export function Table({ of, none = "none" }: { of: Record<string, unknown>; none?: string }) {
  const entries = Object.entries(of);
  if (!entries.length) return <>{none}</>;
  return (
    <ul class="pairs">
      {entries.map(([name, value]) => (
        <li key={name}>
          <Name>{name}</Name> = {value === "" ? <i>(empty)</i> : <code>{visible(typeof value === "string" ? value : JSON.stringify(value))}</code>}
        </li>
      ))}
    </ul>
  );
}

/** Of a cluster: whose part is not there. */
export function Missing({ nodes }: { nodes: string[] | undefined }) {
  if (!nodes?.length) return null;
  return (
    <p role="alert" class="warning">
      {nodes.length === 1 ? "A node does not answer" : "Nodes do not answer"}, and what {nodes.length === 1 ? "it has" : "they have"} is missing here: {nodes.map((node) => [<Name key={node}>{node}</Name>, " "])}
    </p>
  );
}

/** A part of a page with a heading of its own. */
export function Section({ title, aside, children }: { title: string; aside?: ComponentChildren; children: ComponentChildren }) {
  return (
    <section class="card">
      <div class="title">
        <h2>{title}</h2>
        {aside}
      </div>
      {children}
    </section>
  );
}
