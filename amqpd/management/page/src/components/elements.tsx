// Small pieces of text that every page has.
import type { ComponentChildren } from "preact";
import { errorText, UnreachableError } from "../api/client";
import { href, route } from "../shell/router";

// Control characters, and what turns the direction of writing round or has no width.
const INVISIBLE = /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

/** A text from outside so that nothing in it is unseen or turns what stands beside it round. */
export function showInvisible(text: string): string {
  return text.replace(INVISIBLE, (sign) => `‹${sign.charCodeAt(0).toString(16).padStart(2, "0")}›`);
}

/** Spaces at its ends, which nobody would see, and of which a link of nothing else would be none. */
const showOuterSpaces = (text: string): string => text.replace(/^ +| +$/g, (spaces) => "‹20›".repeat(spaces.length));

/** A name from outside: of a queue, a user, a header. */
export function Name({ children }: { children: string }) {
  return <bdi class="name">{children === "" ? <i>(empty)</i> : showOuterSpaces(showInvisible(children))}</bdi>;
}

/** A link to a thing's own page. */
export function NameLink({ path, children, query }: { path: (string | number)[]; children: string; query?: Record<string, string> }) {
  return (
    <a href={href(path, query)}>
      <Name>{children}</Name>
    </a>
  );
}

export function exchangeName(name: string): string {
  return name || "(AMQP default)";
}

/** The name of an exchange in paths of the API and of the page. */
export function exchangeInPath(name: string): string {
  return name || "amq.default";
}

/** The heading of a page; kind: what the named thing is. */
export function PageTitle({ kind, children, aside }: { kind?: string; children: string; aside?: ComponentChildren }) {
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
export function ErrorMessage({ error }: { error: unknown }) {
  return error === undefined || error instanceof UnreachableError ? null : (
    <p role="alert" class="failure">
      {errorText(error)}
    </p>
  );
}

/** A module of the page that cannot be had: the broker is away, or has another build of the page by now. */
export function LoadError() {
  return (
    <div role="alert" class="failure">
      <p>This part of the page cannot be fetched: the broker is away, or has another version by now.</p>
      <button onClick={() => location.reload()}>Load the page anew</button>
    </div>
  );
}

export function Loading() {
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
export function KeyValues({ of, none = "none" }: { of: Record<string, unknown>; none?: string }) {
  const entries = Object.entries(of);
  if (!entries.length) return <>{none}</>;
  return (
    <ul class="pairs">
      {entries.map(([name, value]) => (
        <li key={name}>
          <Name>{name}</Name> = {value === "" ? <i>(empty)</i> : <code>{showInvisible(typeof value === "string" ? value : JSON.stringify(value))}</code>}
        </li>
      ))}
    </ul>
  );
}

/** Of a cluster: whose part is not there. */
export function MissingNodes({ nodes }: { nodes: string[] | undefined }) {
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

const PATHS = {
  menu: "M3 6h18M3 12h18M3 18h18",
  close: "M5 5l14 14M19 5L5 19",
  up: "M6 15l6-6 6 6",
  down: "M6 9l6 6 6-6",
} as const;

/** A small picture beside words or on a button that has a name. */
export function Icon({ name }: { name: keyof typeof PATHS }) {
  return (
    <svg class="icon" viewBox="0 0 24 24" aria-hidden="true">
      <path d={PATHS[name]} />
    </svg>
  );
}

export interface Tab {
  id: string;
  title: string;
  body: () => ComponentChildren;
}

/** Links, as each tab has an address; the first is open unless another is named. */
export function Tabs({ tabs, label }: { tabs: Tab[]; label: string }) {
  const said = route.value.query.get("tab");
  const open = tabs.find((tab) => tab.id === said) ?? tabs[0];
  return (
    <>
      <nav class="tabs" aria-label={label}>
        {tabs.map((tab, index) => (
          <a key={tab.id} href={href(route.value.path, { tab: index ? tab.id : undefined })} aria-current={tab === open ? "page" : undefined}>
            {tab.title}
          </a>
        ))}
      </nav>
      <div key={open?.id} class="stack">{open?.body()}</div>
    </>
  );
}
