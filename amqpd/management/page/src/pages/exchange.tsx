// One exchange: what passes through it, where to, and a message through it.
import { useState } from "preact/hooks";
import { counted, get, remove } from "../api/client";
import { Bind, Bindings } from "../components/bindings";
import { Chart, Charts } from "../components/chart";
import { Danger } from "../components/dialog";
import { SHORT, useHistory, type Counters, type Range } from "../components/samples";
import { count, plural } from "../components/format";
import { Publish } from "../components/publish";
import { useRights } from "../components/rights";
import { exchangeName, Facts, Failure, Name, Section, Table, Title, Waiting } from "../components/elements";
import { Tabs } from "../components/tabs";
import type { PageProps } from "../shell/pages";
import { go } from "../shell/router";

const CURVES = [
  { name: "publish_in", label: "Published to it" },
  { name: "publish_out", label: "To queues" },
];

export default function ExchangePage({ names }: PageProps) {
  const path = { vhost: names[0]!, exchange: names[1]! };
  const name = path.exchange === "amq.default" ? "" : path.exchange;
  const rights = useRights("exchange", path.vhost, name);
  const [range, setRange] = useState<Range>("10 min");
  const { data, error, points } = useHistory(
    range,
    (query, signal) => get("/api/exchanges/{vhost}/{exchange}", path, query, signal),
    (of) => Object.fromEntries(CURVES.map((each) => [each.name, (of.message_stats as Counters | undefined)?.[`${each.name}_details`]])),
    names,
  );
  const overview = () => (
    <>
      {data && (
        <Section title="What it is">
          <Facts
            of={[
              ["Type", data.type],
              ["Virtual host", <Name>{data.vhost}</Name>],
              ["After a restart", data.durable ? "there: durable" : "gone: transient"],
              ["Deletes itself", data.auto_delete ? "with its last binding" : "no"],
              ["Internal", data.internal ? "only other exchanges publish to it" : "no"],
              ["Delayed messages", data.messages_delayed ? count(data.messages_delayed) : undefined],
              ["Policy", data.policy || "none"],
              ["Operator policy", data.operator_policy || undefined],
              ["Obeyed of policies", data.policy || data.operator_policy ? <Table of={data.effective_policy_definition ?? {}} /> : undefined],
              ["Arguments", <Table of={data.arguments} />],
            ]}
          />
        </Section>
      )}
      {data && (
        <Charts title="Messages" range={range} ranges={SHORT} onRange={setRange}>
          <Chart title="Rates" points={points} curves={CURVES} />
        </Charts>
      )}
    </>
  );
  return (
    <>
      <Title kind="Exchange" aside={data && rights.configure && name !== "" && !name.startsWith("amq.") && <Delete path={path} />}>
        {exchangeName(name)}
      </Title>
      <Failure error={error} />
      {data && (
        <Tabs
          label="Parts of this exchange"
          tabs={[
            { id: "", title: "Overview", body: overview },
            { id: "bindings", title: "Bindings", body: () => <Bound path={path} name={name} mayChange={rights.read} /> },
            ...(rights.write && !data.internal ? [{ id: "publish", title: "Publish", body: () => <Section title="Publish a message"><Publish vhost={path.vhost} exchange={name} /></Section> }] : []),
          ]}
        />
      )}
      {!data && !error && <Waiting />}
    </>
  );
}

type Path = { vhost: string; exchange: string };
const OUT = "/api/exchanges/{vhost}/{exchange}/bindings/source";
const INTO = "/api/exchanges/{vhost}/{exchange}/bindings/destination";

function Bound({ path, name, mayChange }: { path: Path; name: string; mayChange: boolean }) {
  const [version, setVersion] = useState(0);
  const common = { of: path, version, mayChange, onChange: () => setVersion((before) => before + 1) };
  if (name === "") {
    return (
      <Section title="Where messages go">
        <p>Each queue is bound to the default exchange by its name, and by nothing else: a message goes to the queue that its routing key names.</p>
      </Section>
    );
  }
  return (
    <>
      <Section title="Where messages go">
        <Bindings path={OUT} shown="destination" {...common} />
        {mayChange && <Bind vhost={path.vhost} exchange={name} onChange={common.onChange} />}
      </Section>
      <Section title="From which exchanges messages come">
        <Bindings path={INTO} shown="source" {...common} />
      </Section>
    </>
  );
}

function Delete({ path }: { path: Path }) {
  return (
    <Danger
      label="Delete"
      title={`Delete the exchange ${path.exchange}?`}
      look={async () => {
        const bindings = (await counted(OUT, path)) + (await counted(INTO, path));
        return {
          text: (
            <p>
              {plural(bindings, "binding")} of it {bindings === 1 ? "goes" : "go"} with it. No message in a queue is touched; whoever publishes to it from then on is refused (404).
            </p>
          ),
          action: "Delete the exchange",
        };
      }}
      run={async () => {
        await remove("/api/exchanges/{vhost}/{exchange}", path);
        return `Exchange ${path.exchange} is deleted.`;
      }}
      onDone={() => go(["exchanges"])}
    />
  );
}
