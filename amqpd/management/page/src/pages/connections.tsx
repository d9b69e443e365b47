import type { components } from "../api/schema";
import { Badge, Name, NameLink, PageTitle } from "../components/elements";
import { formatBytes, formatCount, formatTime } from "../components/format";
import { PagedList } from "../components/paged-list";
import { ConnectionState } from "../components/states";
import type { Column } from "../components/table";
import { selectedVhost } from "../shell/preferences";
import { hasTag, session } from "../shell/session";

type Connection = components["schemas"]["Connection"];

export function clientText(connection: Connection): string {
  const properties = connection.client_properties;
  return [properties["product"], properties["version"]].filter((word) => typeof word === "string").join(" ");
}

const COLUMNS: Column<Connection>[] = [
  {
    title: "Name",
    sort: "name",
    cell: (connection) => (
      <>
        <NameLink path={["connections", connection.name]}>{connection.name}</NameLink>
        {connection.user_provided_name && (
          <div>
            <Name>{connection.user_provided_name}</Name>
          </div>
        )}
      </>
    ),
  },
  { title: "User", sort: "user", cell: (connection) => <Name>{connection.user}</Name> },
  { title: "Virtual host", sort: "vhost", cell: (connection) => <Name>{connection.vhost}</Name> },
  { title: "State", sort: "state", cell: (connection) => <ConnectionState connection={connection} /> },
  { title: "From client", sort: "recv_oct_details.rate", number: true, cell: (connection) => `${formatBytes(connection.recv_oct_details.rate)}/s` },
  { title: "To client", sort: "send_oct_details.rate", number: true, cell: (connection) => `${formatBytes(connection.send_oct_details.rate)}/s` },
  { title: "Channels", sort: "channels", number: true, cell: (connection) => formatCount(connection.channels) },
  { title: "Client", cell: (connection) => <Name>{clientText(connection)}</Name> },
  { title: "TLS", sort: "ssl", cell: (connection) => (connection.ssl ? <Badge kind="good">TLS</Badge> : "no") },
  { title: "Connected at", sort: "connected_at", cell: (connection) => <span class="moment">{formatTime(connection.connected_at)}</span> },
];
const NODE: Column<Connection> = {
  title: "Node",
  sort: "node",
  cell: (connection) => (
    <>
      <Name>{connection.node}</Name>
      {connection.owner && (
        <>
          {" "}
          for <Name>{connection.owner}</Name>
        </>
      )}
    </>
  ),
};
const FIELDS =
  "name,node,owner,user,vhost,user_provided_name,state,held_by,recv_oct_details.rate,send_oct_details.rate,channels,client_properties.product,client_properties.version,ssl,connected_at";

export default function Connections() {
  const chosen = selectedVhost.value;
  return (
    <>
      <PageTitle>Connections</PageTitle>
      {!hasTag("monitoring") && <p class="muted">Connections of user {session.value?.name}. The list of all connections needs the user tag monitoring or administrator.</p>}
      <PagedList<Connection>
        noun="connections"
        path={chosen ? "/api/vhosts/{vhost}/connections" : "/api/connections"}
        names={{ vhost: chosen }}
        query={{ columns: FIELDS }}
        columns={session.value?.clustered ? [...COLUMNS.slice(0, 3), NODE, ...COLUMNS.slice(3)] : COLUMNS}
        idOf={(connection) => connection.name}
      />
    </>
  );
}
