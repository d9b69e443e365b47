// One connection: whose it is, what it does, why it is held, its channels; and its end.
import { useState } from "preact/hooks";
import type { components } from "../api/schema";
import { get, remove, type Names } from "../api/client";
import { Chart, Charts } from "../components/chart";
import { Danger } from "../components/dialog";
import { why, Held } from "../components/states";
import { SHORT, useHistory, type Range } from "../components/samples";
import { List } from "../components/paged-list";
import { count, duration, moment, plural } from "../components/format";
import { Facts, Failure, Name, Section, Table, Title, To, Waiting } from "../components/elements";
import type { PageProps } from "../shell/pages";
import { go } from "../shell/router";
import { has, session } from "../shell/session";
import { CHANNEL_COLUMNS } from "./channels";
import { client } from "./connections";

type Connection = components["schemas"]["Connection"];
type Channel = components["schemas"]["Channel"];
const CURVES = [
  { name: "recv_oct", label: "From the client" },
  { name: "send_oct", label: "To the client" },
];

export default function ConnectionPage({ names }: PageProps) {
  const path: Names = { connection: names[0]! };
  const [range, setRange] = useState<Range>("10 min");
  const { data, error, points } = useHistory(
    range,
    (query, signal) => get("/api/connections/{connection}", path, query, signal),
    (of) => ({ recv_oct: of.recv_oct_details, send_oct: of.send_oct_details }),
    names,
  );
  const mayClose = has("administrator") || data?.user === session.value?.name;
  return (
    <>
      <Title kind="Connection" aside={data && mayClose && <Close of={data} />}>
        {names[0]!}
      </Title>
      <Failure error={error} />
      {data && (
        <>
          <Section title="What it is" aside={<Held of={data} />}>
            <p>{why(data)}</p>
            <Facts
              of={[
                ["User", <Name>{data.user}</Name>],
                ["Virtual host", <Name>{data.vhost}</Name>],
                ["Its own name", data.user_provided_name && <Name>{data.user_provided_name}</Name>],
                ["Client", client(data) || undefined],
                ["Protocol", data.protocol],
                ["Login by", data.auth_mechanism],
                ["TLS", data.ssl ? "yes" : "no"],
                ["Since", moment(data.connected_at)],
                ["Heartbeat", data.timeout ? duration(data.timeout * 1000) : "none"],
                ["Largest frame", count(data.frame_max)],
                ["Channels at most", count(data.channel_max)],
                ["From address", `${data.peer_host}:${data.peer_port}`],
              ]}
            />
          </Section>
          <Charts title="Bytes" range={range} ranges={SHORT} onRange={setRange}>
            <Chart title="Bytes a second" points={points} curves={CURVES} unit="bytes" of={(curve) => points.rates(curve.name)} />
          </Charts>
          <Section title="Channels">
            <List<Channel> what="channels" path="/api/connections/{connection}/channels" names={path} columns={CHANNEL_COLUMNS} idOf={(of) => of.name} searched="many" />
          </Section>
          <Section title="What the client says of itself">
            <Table of={data.client_properties} />
          </Section>
        </>
      )}
      {!data && !error && <Waiting />}
      <p>
        <To path={["connections"]}>All connections</To>
      </p>
    </>
  );
}

function Close({ of }: { of: Connection }) {
  return (
    <Danger
      label="Close it"
      title={`Close the connection ${of.name}?`}
      look={async () => {
        const channels = await get("/api/connections/{connection}/channels", { connection: of.name }, { columns: "messages_unacknowledged,consumer_count" });
        const unacked = channels.reduce((sum, each) => sum + each.messages_unacknowledged, 0);
        const consumers = channels.reduce((sum, each) => sum + each.consumer_count, 0);
        return {
          text: (
            <p>
              Its {plural(channels.length, "channel")} with {plural(consumers, "consumer")} end. {plural(unacked, "unacked message")} of them{" "}
              {unacked === 1 ? "goes" : "go"} back to {unacked === 1 ? "its queue" : "their queues"}, marked as redelivered; exclusive queues of the connection are deleted. Most clients connect anew at once.
            </p>
          ),
          action: "Close the connection",
        };
      }}
      run={async () => {
        await remove("/api/connections/{connection}", { connection: of.name });
        return "The connection is closed.";
      }}
      onDone={() => go(["connections"])}
    />
  );
}
