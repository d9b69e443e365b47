// A connection: its client, why the broker pauses it, its traffic and channels; closing it.
import { useState } from "preact/hooks";
import type { components } from "../api/schema";
import { get, type PathNames, remove } from "../api/client";
import { Chart, Charts } from "../components/chart";
import { DangerButton } from "../components/dialog";
import { ErrorMessage, Facts, KeyValues, Loading, Name, NameLink, PageTitle, Section } from "../components/elements";
import { formatCount, formatDuration, formatTime, plural } from "../components/format";
import { PagedList } from "../components/paged-list";
import { OBJECT_RANGES, type Range, useHistory } from "../components/samples";
import { ConnectionState, pauseText } from "../components/states";
import type { PageProps } from "../shell/pages";
import { navigate } from "../shell/router";
import { hasTag, session } from "../shell/session";
import { CHANNEL_COLUMNS } from "./channels";
import { clientText } from "./connections";

type Connection = components["schemas"]["Connection"];
type Channel = components["schemas"]["Channel"];
const CURVES = [
  { name: "recv_oct", label: "From the client" },
  { name: "send_oct", label: "To the client" },
];

export default function ConnectionPage({ names }: PageProps) {
  const path: PathNames = { connection: names[0]! };
  const [range, setRange] = useState<Range>("10 min");
  const { data, error, points } = useHistory(
    range,
    (query, signal) => get("/api/connections/{connection}", path, query, signal),
    (each) => ({ recv_oct: each.recv_oct_details, send_oct: each.send_oct_details }),
    names,
  );
  const canClose = hasTag("administrator") || data?.user === session.value?.name;
  return (
    <>
      <PageTitle kind="Connection" aside={data && canClose && <CloseButton connection={data} />}>
        {names[0]!}
      </PageTitle>
      <ErrorMessage error={error} />
      {data && (
        <>
          <Section title="Details" aside={<ConnectionState connection={data} />}>
            <p>{pauseText(data)}</p>
            <Facts
              facts={[
                ["User", <Name>{data.user}</Name>],
                ["Virtual host", <Name>{data.vhost}</Name>],
                ["Connection name", data.user_provided_name && <Name>{data.user_provided_name}</Name>],
                ["Client", clientText(data) || undefined],
                ["Protocol", data.protocol],
                ["Authentication", data.auth_mechanism],
                ["TLS", data.ssl ? "yes" : "no"],
                ["Connected at", formatTime(data.connected_at)],
                ["Heartbeat", data.timeout ? formatDuration(data.timeout * 1000) : "none"],
                ["Maximum frame size", formatCount(data.frame_max)],
                ["Maximum number of channels", formatCount(data.channel_max)],
                ["Client address", `${data.peer_host}:${data.peer_port}`],
              ]}
            />
          </Section>
          <Charts title="Bytes" range={range} ranges={OBJECT_RANGES} onRange={setRange}>
            <Chart title="Bytes per second" points={points} curves={CURVES} unit="bytes" valuesOf={(curve) => points.rates(curve.name)} />
          </Charts>
          <Section title="Channels">
            <PagedList<Channel> noun="channels" path="/api/connections/{connection}/channels" names={path} columns={CHANNEL_COLUMNS} idOf={(each) => each.name} searchable="many" />
          </Section>
          <Section title="Client properties">
            <KeyValues values={data.client_properties} />
          </Section>
        </>
      )}
      {!data && !error && <Loading />}
      <p>
        <NameLink path={["connections"]}>All connections</NameLink>
      </p>
    </>
  );
}

function CloseButton({ connection }: { connection: Connection }) {
  return (
    <DangerButton
      label="Close"
      title={`Close the connection ${connection.name}?`}
      preview={async () => {
        const channels = await get("/api/connections/{connection}/channels", { connection: connection.name }, { columns: "messages_unacknowledged,consumer_count" });
        const unacked = channels.reduce((sum, each) => sum + each.messages_unacknowledged, 0);
        const consumers = channels.reduce((sum, each) => sum + each.consumer_count, 0);
        return {
          text: (
            <p>
              The broker closes {plural(channels.length, "channel")} with {plural(consumers, "consumer")}. {plural(unacked, "unacked message returns", "unacked messages return")} to{" "}
              {unacked === 1 ? "its queue" : "their queues"}, marked as redelivered. Exclusive queues of the connection are deleted. Most clients connect again at once.
            </p>
          ),
          action: "Close the connection",
        };
      }}
      run={async () => {
        await remove("/api/connections/{connection}", { connection: connection.name });
        return "The connection was closed.";
      }}
      onDone={() => navigate(["connections"])}
    />
  );
}
