// A user: tags, password, permissions and limits; deleting the user.
import { useState } from "preact/hooks";
import { apiUrl, countItems, getIfExists, request } from "../api/client";
import { DangerButton, type Preview } from "../components/dialog";
import { ErrorMessage, Facts, KeyValues, Name, NameLink, PageTitle, Section } from "../components/elements";
import { Field, fieldText, Form } from "../components/form";
import { plural } from "../components/format";
import { LimitForms } from "../components/limits";
import { notify } from "../components/notices";
import { PagedList } from "../components/paged-list";
import { Pattern, type Permission, Permissions } from "../components/permissions";
import { VhostSelect } from "../components/vhost-select";
import type { PageProps } from "../shell/pages";
import { usePoll } from "../shell/poll";
import { vhostOptions } from "../shell/preferences";
import { navigate } from "../shell/router";
import { session } from "../shell/session";
import { fieldTags, TagFields, Tags, type User } from "./users";

interface TopicPermission extends Omit<Permission, "configure"> {
  exchange: string;
}

const LIMITS = ["max-connections", "max-channels", "producer_byte_rate", "consumer_byte_rate"];

export default function UserPage({ names }: PageProps) {
  const user = names[0]!;
  const pathNames = { user };
  const { data, error, refresh } = usePoll((signal) => request<User>("GET", apiUrl("/api/users/{user}", pathNames), undefined, signal), [user]);
  const reload = (): void => void refresh();
  return (
    <>
      <PageTitle kind="User" aside={<DeleteButton user={user} />}>
        {user}
      </PageTitle>
      <ErrorMessage error={error} />
      <div aria-busy={!data && error === undefined}>
        {data && (
          <>
            <Section title="Details">
              <Facts
                facts={[
                  ["Tags", <Tags tags={data.tags} />],
                  ["Password", data.password_hash ? `set, hashed with ${data.hashing_algorithm}` : "none: the user cannot log in with a password"],
                ]}
              />
            </Section>
            <Section title="Permissions">
              <Permissions user={user} />
            </Section>
            <Section title="Topic permissions">
              <TopicPermissions user={user} />
            </Section>
            <div class="columns">
              <Section title="Limits">
                <LimitForms limits={data.limits} names={LIMITS} path="/api/user-limits/{user}/{name}" pathNames={pathNames} onDone={reload} />
              </Section>
              <Section title="Password">
                <PasswordForm user={user} />
              </Section>
              <Section title="Tags">
                <TagsForm key={data.tags.join()} user={data} onDone={reload} />
              </Section>
            </div>
          </>
        )}
      </div>
    </>
  );
}

function DeleteButton({ user }: { user: string }) {
  const preview = async (): Promise<Preview> => {
    const open = await countItems("/api/connections/username/{user}", { user });
    const selfText = session.value?.name === user ? " You are this user and will be logged out." : "";
    return {
      text: (
        <p>
          The user <Name>{user}</Name> is deleted with all permissions. {open ? `${plural(open, "connection")} of this user ${open === 1 ? "is" : "are"} closed.` : "The user has no open connection."}
          {selfText} Queues and messages stay.
        </p>
      ),
      action: open ? `Delete the user and close ${plural(open, "connection")}` : "Delete the user",
    };
  };
  const run = async (): Promise<string> => {
    await request("DELETE", apiUrl("/api/users/{user}", { user }));
    navigate(["users"]);
    return `User ${user} was deleted.`;
  };
  return <DangerButton label="Delete" title="Delete the user?" preview={preview} run={run} />;
}

function PasswordForm({ user }: { user: string }) {
  const submit = async (fields: FormData): Promise<void> => {
    const password = fieldText(fields, "password");
    if (password !== fieldText(fields, "again")) throw new Error("The two passwords are different.");
    if (!password) throw new Error("The password is empty.");
    await request("PUT", apiUrl("/api/amqpd/users/{user}/password", { user }), { password });
    notify(`The password of ${user} was changed. Sessions with the old password have ended.`);
  };
  return (
    <Form action="Change the password" submit={submit} resetsOnSubmit>
      <Field label="New password">
        <input name="password" type="password" autocomplete="new-password" required />
      </Field>
      <Field label="New password again">
        <input name="again" type="password" autocomplete="new-password" required />
      </Field>
    </Form>
  );
}

function TagsForm({ user, onDone }: { user: User; onDone: () => void }) {
  const submit = async (fields: FormData): Promise<void> => {
    await request("PUT", apiUrl("/api/amqpd/users/{user}/tags", { user: user.name }), { tags: fieldTags(fields) });
    notify(`The tags of ${user.name} were saved.`);
    onDone();
  };
  return (
    <Form action="Set the tags" submit={submit}>
      <TagFields tags={user.tags} />
    </Form>
  );
}

function TopicPermissions({ user }: { user: string }) {
  const [version, setVersion] = useState(0);
  const onDone = (): void => setVersion((before) => before + 1);
  const [vhost, setVhost] = useState(vhostOptions.value[0] ?? "/");
  const urlOf = (vhost: string): string => apiUrl("/api/topic-permissions/{vhost}/{user}", { vhost, user });
  const submit = async (fields: FormData): Promise<void> => {
    await request("PUT", urlOf(vhost), { exchange: fieldText(fields, "exchange"), write: fieldText(fields, "write"), read: fieldText(fields, "read") });
    notify("The topic permission was saved.");
    onDone();
  };
  const findReplaced = async (fields: FormData): Promise<Preview | undefined> => {
    const all = (await getIfExists<TopicPermission[]>(urlOf(vhost))) ?? [];
    const is = all.find((each) => each.exchange === fieldText(fields, "exchange"));
    if (!is || (is.write === fieldText(fields, "write") && is.read === fieldText(fields, "read"))) return undefined;
    return {
      text: (
        <>
          <p>
            The user already has a topic permission for the exchange <Name>{is.exchange}</Name> in <Name>{is.vhost}</Name>. It will be replaced. The present patterns:
          </p>
          <KeyValues values={{ write: is.write || "nothing", read: is.read || "nothing" }} />
        </>
      ),
      action: "Replace the topic permission",
    };
  };
  const clear = (item: TopicPermission): { preview: () => Promise<Preview>; run: () => Promise<string> } => ({
    preview: async () => ({
      text: <p>All topic permissions of this user in this virtual host are cleared. The user may then use any routing key there.</p>,
      action: "Clear",
    }),
    run: async () => {
      await request("DELETE", urlOf(item.vhost));
      onDone();
      return "The topic permissions were cleared.";
    },
  });
  return (
    <>
      <PagedList<TopicPermission>
        noun="topic permissions"
        path="/api/users/{user}/topic-permissions"
        names={{ user }}
        searchable="many"
        searchLabel="virtual host or exchange"
        queryPrefix="topic-"
        version={version}
        idOf={(item) => `${item.vhost}\0${item.exchange}`}
        columns={[
          { title: "Virtual host", sort: "vhost", cell: (item) => <NameLink path={["vhosts", item.vhost]}>{item.vhost}</NameLink> },
          { title: "Exchange", sort: "exchange", cell: (item) => <Name>{item.exchange}</Name> },
          { title: "Write (routing keys)", cell: (item) => <Pattern pattern={item.write} /> },
          { title: "Read (binding keys)", cell: (item) => <Pattern pattern={item.read} /> },
          { title: "Clear", cell: (item) => <DangerButton label="Clear" title="Clear the topic permissions?" {...clear(item)} /> },
        ]}
      />
      <Form action="Set the topic permission" submit={submit} confirmation={findReplaced}>
        <div class="fields">
          <Field label="Virtual host">
            <VhostSelect value={vhost} onChange={setVhost} />
          </Field>
          <Field label="Exchange" hint="Must be of type topic">
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
