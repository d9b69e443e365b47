// Topology: what is bound to what, where messages flow and where they pile up, as a picture and as lists.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { address, request } from "../api/client";
import { Rows, type Column } from "../components/paged-list";
import { count, plural, rate } from "../components/format";
import { Tabs } from "../components/tabs";
import { Badge, exchangeName, Failure, Missing, Name, Title, To } from "../components/elements";
import { usePoll } from "../shell/poll";
import { place, setQuery } from "../shell/router";
import { vhost } from "../shell/preferences";
import { model, pilesUp, WORDS, type Answer, type Exchange, type Leads, type Model, type Queue } from "../topology/model";
import { Picture } from "../topology/picture";

const TYPED_MS = 250;
/** Its rates are those of a sweep of five seconds, and it is the dearest of all answers. */
const LEAST_S = 6;

export default function TopologyPage() {
  const name = place.value.query.get("q") ?? "";
  const of = vhost.value;
  const url = address(of ? "/api/amqpd/topology/{vhost}" : "/api/amqpd/topology", { vhost: of }, { name });
  const { data, error } = usePoll((signal) => request<Answer>("GET", url, undefined, signal), [url], LEAST_S);
  const last = useRef<Answer>();
  if (data) last.current = data;
  const shown = data ?? last.current;
  const found = useMemo(() => shown && model(shown), [shown]);
  return (
    <>
      <Title>Topology</Title>
      <div class="bar">
        <Search text={name} />
        <span class="grow" aria-live="polite">
          {found && tally(found, name)}
        </span>
      </div>
      <Failure error={error} />
      <Missing nodes={shown?.missing_nodes} />
      <div aria-busy={!found && error === undefined}>
        {found && (
          <Tabs
            label="Topology as"
            tabs={[
              { id: "picture", title: "Picture", body: () => <Picture model={found} /> },
              { id: "list", title: "List", body: () => <Lists model={found} /> },
            ]}
          />
        )}
      </div>
    </>
  );
}

function tally(found: Model, name: string): string {
  const [queues, exchanges] = [found.queues.length, found.exchanges.length];
  const all = found.totals.queues + found.totals.exchanges;
  if (name) return `${plural(queues, "queue")} and ${plural(exchanges, "exchange")} with that in their names, and what they are bound to`;
  const busiest = queues < found.totals.queues ? `, the busiest of ${count(found.totals.queues)}; a search finds the others` : "";
  return all ? `${plural(queues, "queue")} and ${plural(exchanges, "exchange")}${busiest}` : "There is nothing yet.";
}

function Search({ text }: { text: string }) {
  const [typed, setTyped] = useState(text);
  const timer = useRef<ReturnType<typeof setTimeout>>();
  useEffect(() => setTyped(text), [text]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const type = (value: string): void => {
    setTyped(value);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => setQuery({ q: value }), TYPED_MS);
  };
  return (
    <form role="search" class="search" onSubmit={(event) => event.preventDefault()}>
      <input type="search" aria-label="Search queues and exchanges by name" placeholder="name contains" value={typed} onInput={(event) => type(event.currentTarget.value)} />
    </form>
  );
}

// -- the same in words ------------------------------------------------------------------------------------------------

function Lists({ model }: { model: Model }) {
  const exchanges: Column<Exchange>[] = [
    { title: "Exchange", cell: (each) => <ExchangeLink of={each} /> },
    { title: "Virtual host", cell: (each) => <Name>{each.vhost}</Name> },
    { title: "Type", cell: (each) => each.type },
    { title: "In", number: true, cell: (each) => rate(each.in_rate) },
    { title: "Publishers", cell: (each) => <Peers model={model} id={each.id} /> },
    { title: "Leads to", cell: (each) => <Ends links={model.from.get(each.id) ?? []} model={model} end="destination" /> },
  ];
  const queues: Column<Queue>[] = [
    { title: "Queue", cell: (each) => <To path={["queues", each.vhost, each.name]}>{each.name}</To> },
    { title: "Virtual host", cell: (each) => <Name>{each.vhost}</Name> },
    {
      title: "Messages",
      number: true,
      cell: (each) => (
        <>
          {count(each.messages)} {pilesUp(each) && <Badge kind="warn">piles up</Badge>}
        </>
      ),
    },
    { title: "In", number: true, cell: (each) => rate(each.in_rate) },
    { title: "Out", number: true, cell: (each) => rate(each.out_rate) },
    { title: "Comes from", cell: (each) => <Ends links={model.to.get(each.id) ?? []} model={model} end="source" /> },
    { title: "Consumers", cell: (each) => <Peers model={model} id={each.id} all={each.consumers} /> },
    { title: "Leads to", cell: (each) => <Ends links={model.from.get(each.id) ?? []} model={model} end="destination" /> },
  ];
  return (
    <>
      <Rows what="exchanges" items={model.exchanges} columns={exchanges} idOf={(each) => each.id} />
      <Rows what="queues" items={model.queues} columns={queues} idOf={(each) => each.id} />
    </>
  );
}

function ExchangeLink({ of }: { of: Exchange }) {
  return <To path={["exchanges", of.vhost, of.name || "amq.default"]}>{exchangeName(of.name)}</To>;
}

const ENDS_SHOWN = 20;

function Ends({ links, model, end }: { links: Leads[]; model: Model; end: "source" | "destination" }) {
  if (!links.length) return <>–</>;
  return (
    <ul class="pairs">
      {links.slice(0, ENDS_SHOWN).map((link) => {
        const [exchange, queue] = [model.exchangeOf.get(link[end]), model.queueOf.get(link[end])];
        return (
          <li key={`${link.kind} ${link[end]}`}>
            {exchange && <ExchangeLink of={exchange} />}
            {queue && <To path={["queues", queue.vhost, queue.name]}>{queue.name}</To>} {link.kind !== "binding" && <small>{WORDS[link.kind]} </small>}
            {link.keys.map((key) => (
              <code key={key}>
                <Name>{key}</Name>{" "}
              </code>
            ))}
            {link.count > link.keys.length && link.kind === "binding" && <small>and {count(link.count - link.keys.length)} more </small>}
            {link.rate !== null && link.rate > 0 && <small>{`${link.estimated ? "about " : ""}${rate(link.rate)}`}</small>}
          </li>
        );
      })}
      {links.length > ENDS_SHOWN && <li>and {count(links.length - ENDS_SHOWN)} more</li>}
    </ul>
  );
}

function Peers({ model, id, all }: { model: Model; id: string; all?: number }) {
  const peers = model.peersOf.get(id) ?? [];
  if (!peers.length) return <>–</>;
  return (
    <ul class="pairs">
      {peers.map((peer) => (
        <li key={`${peer.connection} ${peer.user}`}>
          <To path={["connections", peer.connection]}>{peer.connection}</To> <small>(<Name>{peer.user}</Name>)</small>
        </li>
      ))}
      {all !== undefined && all > peers.reduce((sum, peer) => sum + peer.count, 0) && <li>{count(all)} in all</li>}
    </ul>
  );
}
