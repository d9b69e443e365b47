import { useState } from "preact/hooks";
import { apiUrl, request } from "../api/client";
import { Dialog } from "../components/dialog";
import { Badge, NameLink, PageTitle, showInvisible } from "../components/elements";
import { Field, fieldText, Form } from "../components/form";
import { notify } from "../components/notices";
import { PagedList } from "../components/paged-list";
import type { Column } from "../components/table";

export interface User {
  name: string;
  password_hash: string;
  hashing_algorithm: string;
  tags: string[];
  limits: Record<string, number>;
  /** Virtual hosts with permissions of this user; only in lists that ask for them. */
  vhosts?: string[];
}

const COLUMNS: Column<User>[] = [
  { title: "Name", sort: "name", cell: (user) => <NameLink path={["users", user.name]}>{user.name}</NameLink> },
  { title: "Tags", sort: "tags", cell: (user) => <Tags tags={user.tags} /> },
  { title: "Can access", cell: (user) => <UserVhosts vhosts={user.vhosts ?? []} /> },
  { title: "Password", cell: (user) => (user.password_hash ? "set" : <Badge title="The user cannot log in with a password, but may with a certificate">none</Badge>) },
  { title: "Limits", cell: (user) => limitsText(user.limits) },
];

export default function Users() {
  const [adding, setAdding] = useState(false);
  const [version, setVersion] = useState(0);
  return (
    <>
      <PageTitle>Users</PageTitle>
      <PagedList<User>
        noun="users"
        path="/api/users"
        query={{ vhosts: true }}
        columns={COLUMNS}
        idOf={(user) => user.name}
        version={version}
        toolbar={<button onClick={() => setAdding(true)}>New user</button>}
      />
      {adding && (
        <NewUser
          onClose={(done) => {
            setAdding(false);
            if (done) setVersion(version + 1);
          }}
        />
      )}
    </>
  );
}

const VHOSTS_SHOWN_MAX = 5;

function UserVhosts({ vhosts }: { vhosts: string[] }) {
  if (!vhosts.length) return <Badge kind="warn" title="The user has no permissions in any virtual host">none</Badge>;
  return (
    <>
      {vhosts.slice(0, VHOSTS_SHOWN_MAX).map((vhost) => [<NameLink key={vhost} path={["vhosts", vhost]}>{vhost}</NameLink>, " "])}
      {vhosts.length > VHOSTS_SHOWN_MAX && <small title={vhosts.map(showInvisible).join("\n")}>and {vhosts.length - VHOSTS_SHOWN_MAX} more</small>}
    </>
  );
}

export function Tags({ tags }: { tags: string[] }) {
  return <>{tags.length ? tags.map((tag) => <Badge key={tag}>{tag}</Badge>) : "none: cannot use this page"}</>;
}

export function limitsText(limits: Record<string, number>): string {
  const found = Object.entries(limits).map(([name, value]) => `${name} ${value}`);
  return found.length ? found.join(", ") : "none";
}

const KNOWN_TAGS: [string, string][] = [
  ["management", "uses the page within the user's permissions"],
  ["policymaker", "also sets policies"],
  ["monitoring", "also sees all virtual hosts, all connections and the nodes"],
  ["administrator", "everything"],
];

export function TagFields({ tags }: { tags: string[] }) {
  const others = tags.filter((tag) => !KNOWN_TAGS.some(([known]) => known === tag));
  return (
    <fieldset>
      <legend>Tags</legend>
      {KNOWN_TAGS.map(([tag, meaning]) => (
        <label key={tag} class="checkbox">
          <input type="checkbox" name="tag" value={tag} defaultChecked={tags.includes(tag)} /> {tag} <small>{meaning}</small>
        </label>
      ))}
      <Field label="Other tags" hint="Separated by commas">
        <input name="others" autocomplete="off" defaultValue={others.join(", ")} />
      </Field>
    </fieldset>
  );
}

export function fieldTags(fields: FormData): string[] {
  const others = fieldText(fields, "others").split(",");
  return [...fields.getAll("tag").map(String), ...others.map((tag) => tag.trim()).filter(Boolean)];
}

function NewUser({ onClose }: { onClose: (done: boolean) => void }) {
  const submit = async (fields: FormData): Promise<void> => {
    const name = fieldText(fields, "name");
    const password = fieldText(fields, "password");
    if (password !== fieldText(fields, "again")) throw new Error("The two passwords are different.");
    const url = apiUrl("/api/users/{user}", { user: name });
    const body = { tags: fieldTags(fields), ...(password ? { password } : { password_hash: "" }) };
    // The header prevents the replacement of an existing user.
    await request("PUT", url, body, undefined, { "If-None-Match": "*" });
    notify(`User ${name} was created, without permissions.`);
    onClose(true);
  };
  return (
    <Dialog title="New user" onClose={() => onClose(false)}>
      <Form action="Add the user" submit={submit}>
        <Field label="Name">
          <input name="name" required autocomplete="off" />
        </Field>
        <Field label="Password" hint="If empty, the user cannot log in with a password">
          <input name="password" type="password" autocomplete="new-password" />
        </Field>
        <Field label="Password again">
          <input name="again" type="password" autocomplete="new-password" />
        </Field>
        <TagFields tags={[]} />
      </Form>
    </Dialog>
  );
}
