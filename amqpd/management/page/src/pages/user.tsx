// One user: tags, password, what he may do where, how much of it, and his end.
import { useState } from "preact/hooks";
import { address, counted, found, request } from "../api/client";
import { Danger, type Consequence } from "../components/dialog";
import { Field, Form, text } from "../components/form";
import { Limits } from "../components/limits";
import { List } from "../components/paged-list";
import { notify } from "../components/notices";
import { plural } from "../components/format";
import { Facts, Failure, Name, Section, Table, Title, To } from "../components/elements";
import type { PageProps } from "../shell/pages";
import { usePoll } from "../shell/poll";
import { go } from "../shell/router";
import { session } from "../shell/session";
import { vhosts } from "../shell/preferences";
import { Pattern, Permissions, type Permission } from "../components/permissions";
import { VhostChoice } from "../components/vhost-select";
import { TagFields, Tags, tagsOf, type User } from "./users";

interface Topic extends Omit<Permission, "configure"> {
  exchange: string;
}

const LIMITS = ["max-connections", "max-channels"];

export default function UserPage({ names }: PageProps) {
  const user = names[0]!;
  const of = { user };
  const { data, error, refresh } = usePoll((signal) => request<User>("GET", address("/api/users/{user}", of), undefined, signal), [user]);
  const again = (): void => void refresh();
  return (
    <>
      <Title kind="User" aside={<Delete user={user} />}>
        {user}
      </Title>
      <Failure error={error} />
      <div aria-busy={!data && error === undefined}>
        {data && (
          <>
            <Section title="About">
              <Facts
                of={[
                  ["Tags", <Tags of={data.tags} />],
                  ["Password", data.password_hash ? `set, kept as ${data.hashing_algorithm}` : "none: no password opens it"],
                ]}
              />
            </Section>
            <Section title="Permissions">
              <Permissions user={user} />
            </Section>
            <Section title="Topic permissions">
              <Topics user={user} />
            </Section>
            <div class="columns">
              <Section title="Limits">
                <Limits of={data.limits} names={LIMITS} path="/api/user-limits/{user}/{name}" thing={of} onDone={again} />
              </Section>
              <Section title="Password">
                <Password user={user} />
              </Section>
              <Section title="Tags">
                <ChangeTags key={data.tags.join()} user={data} onDone={again} />
              </Section>
            </div>
          </>
        )}
      </div>
    </>
  );
}

function Delete({ user }: { user: string }) {
  const look = async (): Promise<Consequence> => {
    const open = await counted("/api/connections/username/{user}", { user });
    const own = session.value?.name === user ? " This is you: you are logged out, too." : "";
    return {
      text: (
        <p>
          The user <Name>{user}</Name> goes with all permissions. {open ? `${plural(open, "connection")} of this user ${open === 1 ? "is" : "are"} closed.` : "No connection is open."}
          {own} Queues and messages stay.
        </p>
      ),
      action: open ? `Delete the user and close ${plural(open, "connection")}` : "Delete the user",
    };
  };
  const run = async (): Promise<string> => {
    await request("DELETE", address("/api/users/{user}", { user }));
    go(["users"]);
    return `User ${user} is gone.`;
  };
  return <Danger label="Delete" title="Delete the user?" look={look} run={run} />;
}

function Password({ user }: { user: string }) {
  const send = async (fields: FormData): Promise<void> => {
    const password = text(fields, "password");
    if (password !== text(fields, "again")) throw new Error("The two passwords are not the same.");
    if (!password) throw new Error("The password is empty.");
    await request("PUT", address("/api/amqpd/users/{user}/password", { user }), { password });
    notify(`The password of ${user} is another now; logins of this page with the old one are over.`);
  };
  return (
    <Form action="Change the password" send={send} once>
      <Field label="New password">
        <input name="password" type="password" autocomplete="new-password" required />
      </Field>
      <Field label="New password again">
        <input name="again" type="password" autocomplete="new-password" required />
      </Field>
    </Form>
  );
}

function ChangeTags({ user, onDone }: { user: User; onDone: () => void }) {
  const send = async (fields: FormData): Promise<void> => {
    await request("PUT", address("/api/amqpd/users/{user}/tags", { user: user.name }), { tags: tagsOf(fields) });
    notify(`The tags of ${user.name} are set.`);
    onDone();
  };
  return (
    <Form action="Set the tags" send={send}>
      <TagFields tags={user.tags} />
    </Form>
  );
}

function Topics({ user }: { user: string }) {
  const [version, setVersion] = useState(0);
  const onDone = (): void => setVersion((before) => before + 1);
  const [vhost, setVhost] = useState(vhosts.value[0] ?? "/");
  const url = (of: string): string => address("/api/topic-permissions/{vhost}/{user}", { vhost: of, user });
  const send = async (fields: FormData): Promise<void> => {
    await request("PUT", url(vhost), { exchange: text(fields, "exchange"), write: text(fields, "write"), read: text(fields, "read") });
    notify("The topic permission is set.");
    onDone();
  };
  const before = async (fields: FormData): Promise<Consequence | undefined> => {
    const all = (await found<Topic[]>(url(vhost))) ?? [];
    const is = all.find((each) => each.exchange === text(fields, "exchange"));
    if (!is || (is.write === text(fields, "write") && is.read === text(fields, "read"))) return undefined;
    return {
      text: (
        <>
          <p>
            There is one for the exchange <Name>{is.exchange}</Name> in <Name>{is.vhost}</Name> already. These patterns are replaced:
          </p>
          <Table of={{ write: is.write || "nothing", read: is.read || "nothing" }} />
        </>
      ),
      action: "Replace the topic permission",
    };
  };
  const clear = (item: Topic): { look: () => Promise<Consequence>; run: () => Promise<string> } => ({
    look: async () => ({
      text: <p>All topic permissions of this user in that virtual host go: routing keys are not limited there any more.</p>,
      action: "Clear them",
    }),
    run: async () => {
      await request("DELETE", url(item.vhost));
      onDone();
      return "The topic permissions are cleared.";
    },
  });
  return (
    <>
      <List<Topic>
        what="topic permissions"
        path="/api/users/{user}/topic-permissions"
        names={{ user }}
        searched="many"
        by="virtual host or exchange"
        as="topic-"
        version={version}
        idOf={(item) => `${item.vhost}\0${item.exchange}`}
        columns={[
          { title: "Virtual host", sort: "vhost", cell: (item) => <To path={["vhosts", item.vhost]}>{item.vhost}</To> },
          { title: "Exchange", sort: "exchange", cell: (item) => <Name>{item.exchange}</Name> },
          { title: "Write: routing keys that match", cell: (item) => <Pattern of={item.write} /> },
          { title: "Read: binding keys that match", cell: (item) => <Pattern of={item.read} /> },
          { title: "Clear", cell: (item) => <Danger label="Clear" title="Clear the topic permissions?" {...clear(item)} /> },
        ]}
      />
      <Form action="Set the topic permission" send={send} before={before}>
        <div class="fields">
          <Field label="Virtual host">
            <VhostChoice value={vhost} onChange={setVhost} />
          </Field>
          <Field label="Exchange" hint="Of type topic">
            <input name="exchange" defaultValue="amq.topic" required />
          </Field>
          <Field label="Write">
            <input name="write" class="code" defaultValue=".*" />
          </Field>
          <Field label="Read">
            <input name="read" class="code" defaultValue=".*" />
          </Field>
        </div>
      </Form>
    </>
  );
}
