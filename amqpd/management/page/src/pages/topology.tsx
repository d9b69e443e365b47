// The topology: exchanges, bindings, queues and clients, as a picture and as tables.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { apiUrl, request } from "../api/client";
import { Badge, ErrorMessage, exchangeName, MissingNodes, Name, NameLink, PageTitle, Tabs } from "../components/elements";
import { formatCount, formatRate, plural } from "../components/format";
import { type Column, DataTable } from "../components/table";
import { usePoll } from "../shell/poll";
import { selectedVhost } from "../shell/preferences";
import { route, setQuery } from "../shell/router";
import { type Answer, type Exchange, isGrowing, LINK_TEXT, type Queue, type Topology, type TopologyLink, toTopology } from "../topology/model";
import { TopologyPicture } from "../topology/picture";

const TYPING_PAUSE_MS = 250;
/** The broker updates these rates every five seconds, and this answer costs more than all others. */
const POLL_INTERVAL_MIN_S = 6;

export default function TopologyPage() {
  const name = route.value.query.get("q") ?? "";
  const chosenVhost = selectedVhost.value;
  const url = apiUrl(chosenVhost ? "/api/amqpd/topology/{vhost}" : "/api/amqpd/topology", { vhost: chosenVhost }, { name });
  const { data, error } = usePoll((signal) => request<Answer>("GET", url, undefined, signal), [url], POLL_INTERVAL_MIN_S);
  const lastAnswer = useRef<Answer>();
  if (data) lastAnswer.current = data;
  const shown = data ?? lastAnswer.current;
  const found = useMemo(() => shown && toTopology(shown), [shown]);
  return (
    <>
      <PageTitle>Topology</PageTitle>
      <div class="bar">
        <Search text={name} />
        <span class="grow" aria-live="polite">
          {found && countText(found, name)}
        </span>
      </div>
      <ErrorMessage error={error} />
      <MissingNodes nodes={shown?.missing_nodes} />
      <div aria-busy={!found && error === undefined}>
        {found && (
          <Tabs
            label="Views of the topology"
            tabs={[
              { id: "picture", title: "Picture", body: () => <TopologyPicture model={found} /> },
              { id: "list", title: "List", body: () => <Lists model={found} /> },
            ]}
          />
        )}
      </div>
    </>
  );
}

function countText(found: Topology, name: string): string {
  const [queues, exchanges] = [found.queues.length, found.exchanges.length];
  const all = found.totals.queues + found.totals.exchanges;
  if (name) return `${plural(queues, "queue")} and ${plural(exchanges, "exchange")} with matching names, and what they are bound to`;
  const busiest = queues < found.totals.queues ? `, the busiest of ${formatCount(found.totals.queues)}; search to find the others` : "";
  return all ? `${plural(queues, "queue")} and ${plural(exchanges, "exchange")}${busiest}` : "There are no queues and exchanges yet.";
}

function Search({ text }: { text: string }) {
  const [typed, setTyped] = useState(text);
  const timer = useRef<ReturnType<typeof setTimeout>>();
  useEffect(() => setTyped(text), [text]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const type = (value: string): void => {
    setTyped(value);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => setQuery({ q: value }), TYPING_PAUSE_MS);
  };
  return (
    <form role="search" class="search" onSubmit={(event) => event.preventDefault()}>
      <input type="search" aria-label="Search queues and exchanges by name" placeholder="name contains" value={typed} onInput={(event) => type(event.currentTarget.value)} />
    </form>
  );
}

// -- the same as tables ---------------------------------------------------------------------------------------------------

function Lists({ model }: { model: Topology }) {
  const exchanges: Column<Exchange>[] = [
    { title: "Exchange", cell: (each) => <ExchangeLink exchange={each} /> },
    { title: "Virtual host", cell: (each) => <Name>{each.vhost}</Name> },
    { title: "Type", cell: (each) => each.type },
    { title: "In", number: true, cell: (each) => formatRate(each.in_rate) },
    { title: "Publishers", cell: (each) => <ClientList model={model} id={each.id} /> },
    { title: "To", cell: (each) => <LinkList links={model.linksFrom.get(each.id) ?? []} model={model} end="destination" /> },
  ];
  const queues: Column<Queue>[] = [
    { title: "Queue", cell: (each) => <NameLink path={["queues", each.vhost, each.name]}>{each.name}</NameLink> },
    { title: "Virtual host", cell: (each) => <Name>{each.vhost}</Name> },
    {
      title: "Messages",
      number: true,
      cell: (each) => (
        <>
          {formatCount(each.messages)} {isGrowing(each) && <Badge kind="warn">growing</Badge>}
        </>
      ),
    },
    { title: "In", number: true, cell: (each) => formatRate(each.in_rate) },
    { title: "Out", number: true, cell: (each) => formatRate(each.out_rate) },
    { title: "From", cell: (each) => <LinkList links={model.linksTo.get(each.id) ?? []} model={model} end="source" /> },
    { title: "Consumers", cell: (each) => <ClientList model={model} id={each.id} all={each.consumers} /> },
    { title: "To", cell: (each) => <LinkList links={model.linksFrom.get(each.id) ?? []} model={model} end="destination" /> },
  ];
  return (
    <>
      <DataTable noun="exchanges" items={model.exchanges} columns={exchanges} idOf={(each) => each.id} />
      <DataTable noun="queues" items={model.queues} columns={queues} idOf={(each) => each.id} />
    </>
  );
}

function ExchangeLink({ exchange }: { exchange: Exchange }) {
  return <NameLink path={["exchanges", exchange.vhost, exchange.name || "amq.default"]}>{exchangeName(exchange.name)}</NameLink>;
}

const LINKS_SHOWN_MAX = 20;

function LinkList({ links, model, end }: { links: TopologyLink[]; model: Topology; end: "source" | "destination" }) {
  if (!links.length) return <>–</>;
  return (
    <ul class="key-values">
      {links.slice(0, LINKS_SHOWN_MAX).map((link) => {
        const [exchange, queue] = [model.exchangeOf.get(link[end]), model.queueOf.get(link[end])];
        return (
          <li key={`${link.kind} ${link[end]}`}>
            {exchange && <ExchangeLink exchange={exchange} />}
            {queue && <NameLink path={["queues", queue.vhost, queue.name]}>{queue.name}</NameLink>} {link.kind !== "binding" && <small>{LINK_TEXT[link.kind]} </small>}
            {link.keys.map((key) => (
              <code key={key}>
                <Name>{key}</Name>{" "}
              </code>
            ))}
            {link.count > link.keys.length && link.kind === "binding" && <small>and {formatCount(link.count - link.keys.length)} more </small>}
            {link.rate !== null && link.rate > 0 && <small>{`${link.estimated ? "about " : ""}${formatRate(link.rate)}`}</small>}
          </li>
        );
      })}
      {links.length > LINKS_SHOWN_MAX && <li>and {formatCount(links.length - LINKS_SHOWN_MAX)} more</li>}
    </ul>
  );
}

function ClientList({ model, id, all }: { model: Topology; id: string; all?: number }) {
  const peers = model.clientsOf.get(id) ?? [];
  if (!peers.length) return <>–</>;
  return (
    <ul class="key-values">
      {peers.map((peer) => (
        <li key={`${peer.connection} ${peer.user}`}>
          <NameLink path={["connections", peer.connection]}>{peer.connection}</NameLink> <small>(<Name>{peer.user}</Name>)</small>
        </li>
      ))}
      {all !== undefined && all > peers.reduce((sum, peer) => sum + peer.count, 0) && <li>{formatCount(all)} in total</li>}
    </ul>
  );
}
