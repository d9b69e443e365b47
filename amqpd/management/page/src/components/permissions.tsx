// What users may configure, write and read in virtual hosts: of one user in all of them, or in one of all users.
import { useState } from "preact/hooks";
import { address, found, request } from "../api/client";
import { vhosts } from "../shell/preferences";
import { Danger, type Consequence } from "./dialog";
import { Field, Form, text } from "./form";
import { List, type Column } from "./paged-list";
import { notify } from "./notices";
import { Name, Table, To } from "./elements";
import { VhostChoice } from "./vhost-select";

export interface Permission {
  user: string;
  vhost: string;
  configure: string;
  write: string;
  read: string;
}

const KINDS = ["configure", "write", "read"] as const;

/** Whose, or where: one of the two. */
type PermissionsProps = { user: string; vhost?: undefined } | { user?: undefined; vhost: string };

const urlOf = (vhost: string, user: string): string => address("/api/permissions/{vhost}/{user}", { vhost, user });

export function Permissions({ user, vhost }: PermissionsProps) {
  const [version, setVersion] = useState(0);
  const onDone = (): void => setVersion((before) => before + 1);
  const [chosen, setChosen] = useState(vhosts.value[0] ?? "/");
  const send = async (fields: FormData): Promise<void> => {
    const body = { configure: text(fields, "configure"), write: text(fields, "write"), read: text(fields, "read") };
    await request("PUT", urlOf(vhost ?? chosen, user ?? text(fields, "user")), body);
    notify("The permission is set.");
    onDone();
  };
  const before = async (fields: FormData): Promise<Consequence | undefined> => {
    const at = urlOf(vhost ?? chosen, user ?? text(fields, "user"));
    const is = await found<Permission>(at);
    if (!is || KINDS.every((kind) => is[kind] === text(fields, kind))) return undefined;
    return {
      text: (
        <>
          <p>
            <Name>{is.user}</Name> may enter <Name>{is.vhost}</Name> already. These patterns are replaced:
          </p>
          <Table of={Object.fromEntries(KINDS.map((kind) => [kind, is[kind] || "nothing"]))} />
        </>
      ),
      action: "Replace the permission",
    };
  };
  const other: Column<Permission> =
    user === undefined
      ? { title: "User", sort: "user", cell: (item) => <To path={["users", item.user]}>{item.user}</To> }
      : { title: "Virtual host", sort: "vhost", cell: (item) => <To path={["vhosts", item.vhost]}>{item.vhost}</To> };
  return (
    <>
      <List<Permission>
        what="permissions"
        path={user === undefined ? "/api/vhosts/{vhost}/permissions" : "/api/users/{user}/permissions"}
        names={user === undefined ? { vhost } : { user }}
        searched="many"
        by={user === undefined ? "user" : "virtual host"}
        version={version}
        idOf={(item) => `${item.vhost}\0${item.user}`}
        columns={[
          other,
          { title: "Configure", cell: (item) => <Pattern of={item.configure} /> },
          { title: "Write", cell: (item) => <Pattern of={item.write} /> },
          { title: "Read", cell: (item) => <Pattern of={item.read} /> },
          { title: "Clear", cell: (item) => <Clear item={item} onDone={onDone} /> },
        ]}
      />
      <Form action="Set the permission" send={send} before={before}>
        <div class="fields">
          {user === undefined ? (
            <Field label="User">
              <input name="user" required autocomplete="off" />
            </Field>
          ) : (
            <Field label="Virtual host">
              <VhostChoice value={chosen} onChange={setChosen} />
            </Field>
          )}
          {KINDS.map((kind) => (
            <Field key={kind} label={kind[0]!.toUpperCase() + kind.slice(1)} hint="Names that match; empty: nothing">
              <input name={kind} class="code" defaultValue=".*" />
            </Field>
          ))}
        </div>
      </Form>
    </>
  );
}

export function Pattern({ of }: { of: string }) {
  return of ? (
    <code>
      <Name>{of}</Name>
    </code>
  ) : (
    <span class="soft">nothing</span>
  );
}

function Clear({ item, onDone }: { item: Permission; onDone: () => void }) {
  const look = async (): Promise<Consequence> => ({
    text: (
      <p>
        The user <Name>{item.user}</Name> may not enter <Name>{item.vhost}</Name> any more; connections of that user there are closed.
      </p>
    ),
    action: "Clear the permission",
  });
  const run = async (): Promise<string> => {
    await request("DELETE", urlOf(item.vhost, item.user));
    onDone();
    return "The permission is cleared.";
  };
  return <Danger label="Clear" title="Clear the permission?" look={look} run={run} />;
}
