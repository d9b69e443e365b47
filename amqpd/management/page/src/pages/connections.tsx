// Who is connected, what they do, and whom the broker holds, and why.
import type { components } from "../api/schema";
import { Held } from "../components/states";
import { List, type Column } from "../components/paged-list";
import { bytes, count, moment } from "../components/format";
import { Badge, Name, Title, To } from "../components/elements";
import { has, session } from "../shell/session";
import { vhost } from "../shell/preferences";

type Connection = components["schemas"]["Connection"];

export function client(of: Connection): string {
  const said = of.client_properties;
  return [said["product"], said["version"]].filter((word) => typeof word === "string").join(" ");
}

const COLUMNS: Column<Connection>[] = [
  {
    title: "Name",
    sort: "name",
    cell: (of) => (
      <>
        <To path={["connections", of.name]}>{of.name}</To>
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
  { title: "State", sort: "state", cell: (of) => <Held of={of} /> },
  { title: "From client", sort: "recv_oct_details.rate", number: true, cell: (of) => `${bytes(of.recv_oct_details.rate)}/s` },
  { title: "To client", sort: "send_oct_details.rate", number: true, cell: (of) => `${bytes(of.send_oct_details.rate)}/s` },
  { title: "Channels", sort: "channels", number: true, cell: (of) => count(of.channels) },
  { title: "Client", cell: (of) => <Name>{client(of)}</Name> },
  { title: "TLS", sort: "ssl", cell: (of) => (of.ssl ? <Badge kind="good">TLS</Badge> : "no") },
  { title: "Since", sort: "connected_at", cell: (of) => <span class="moment">{moment(of.connected_at)}</span> },
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
  const chosen = vhost.value;
  return (
    <>
      <Title>Connections</Title>
      {!has("monitoring") && <p class="soft">Those of user {session.value?.name}; all are for the user tag monitoring, or administrator.</p>}
      <List<Connection>
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
