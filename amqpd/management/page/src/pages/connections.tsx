// Who is connected, what they do, and whom the broker holds, and why.
import type { components } from "../api/schema";
import { Badge, Name, NameLink, PageTitle } from "../components/elements";
import { formatBytes, formatCount, formatTime } from "../components/format";
import { PagedList } from "../components/paged-list";
import { ConnectionState } from "../components/states";
import type { Column } from "../components/table";
import { selectedVhost } from "../shell/preferences";
import { hasTag, session } from "../shell/session";

type Connection = components["schemas"]["Connection"];

export function clientText(of: Connection): string {
  const said = of.client_properties;
  return [said["product"], said["version"]].filter((word) => typeof word === "string").join(" ");
}

const COLUMNS: Column<Connection>[] = [
  {
    title: "Name",
    sort: "name",
    cell: (of) => (
      <>
        <NameLink path={["connections", of.name]}>{of.name}</NameLink>
        {of.user_provided_name && (
          <div>
            <Name>{of.user_provided_name}</Name>
          </div>
        )}
      </>
    ),
  },
  { title: "User", sort: "user", cell: (of) => <Name>{of.user}</Name> },
  { title: "Virtual host", sort: "vhost", cell: (of) => <Name>{of.vhost}</Name> },
  { title: "State", sort: "state", cell: (of) => <ConnectionState of={of} /> },
  { title: "From client", sort: "recv_oct_details.rate", number: true, cell: (of) => `${formatBytes(of.recv_oct_details.rate)}/s` },
  { title: "To client", sort: "send_oct_details.rate", number: true, cell: (of) => `${formatBytes(of.send_oct_details.rate)}/s` },
  { title: "Channels", sort: "channels", number: true, cell: (of) => formatCount(of.channels) },
  { title: "Client", cell: (of) => <Name>{clientText(of)}</Name> },
  { title: "TLS", sort: "ssl", cell: (of) => (of.ssl ? <Badge kind="good">TLS</Badge> : "no") },
  { title: "Since", sort: "connected_at", cell: (of) => <span class="moment">{formatTime(of.connected_at)}</span> },
];
const NODE: Column<Connection> = {
  title: "Node",
  sort: "node",
  cell: (of) => (
    <>
      <Name>{of.node}</Name>
      {of.owner && (
        <>
          {" "}
          for <Name>{of.owner}</Name>
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
      {!hasTag("monitoring") && <p class="soft">Those of user {session.value?.name}; all are for the user tag monitoring, or administrator.</p>}
      <PagedList<Connection>
        what="connections"
        path={chosen ? "/api/vhosts/{vhost}/connections" : "/api/connections"}
        names={{ vhost: chosen }}
        query={{ columns: FIELDS }}
        columns={session.value?.clustered ? [...COLUMNS.slice(0, 3), NODE, ...COLUMNS.slice(3)] : COLUMNS}
        idOf={(of) => of.name}
      />
    </>
  );
}
