// Permissions to configure, write and read: of one user in all virtual hosts, or of all users in one.
import { useState } from "preact/hooks";
import { apiUrl, getIfExists, request } from "../api/client";
import { vhostOptions } from "../shell/preferences";
import { DangerButton, type Preview } from "./dialog";
import { KeyValues, Name, NameLink } from "./elements";
import { Field, fieldText, Form } from "./form";
import { notify } from "./notices";
import { PagedList } from "./paged-list";
import type { Column } from "./table";
import { VhostSelect } from "./vhost-select";

export interface Permission {
  user: string;
  vhost: string;
  configure: string;
  write: string;
  read: string;
}

const KINDS = ["configure", "write", "read"] as const;

type PermissionsProps = { user: string; vhost?: undefined } | { user?: undefined; vhost: string };

const urlOf = (vhost: string, user: string): string => apiUrl("/api/permissions/{vhost}/{user}", { vhost, user });

export function Permissions({ user, vhost }: PermissionsProps) {
  const [version, setVersion] = useState(0);
  const onDone = (): void => setVersion((before) => before + 1);
  const [chosen, setChosen] = useState(vhostOptions.value[0] ?? "/");
  const submit = async (fields: FormData): Promise<void> => {
    const body = { configure: fieldText(fields, "configure"), write: fieldText(fields, "write"), read: fieldText(fields, "read") };
    await request("PUT", urlOf(vhost ?? chosen, user ?? fieldText(fields, "user")), body);
    notify("The permission was saved.");
    onDone();
  };
  const findReplaced = async (fields: FormData): Promise<Preview | undefined> => {
    const at = urlOf(vhost ?? chosen, user ?? fieldText(fields, "user"));
    const is = await getIfExists<Permission>(at);
    if (!is || KINDS.every((kind) => is[kind] === fieldText(fields, kind))) return undefined;
    return {
      text: (
        <>
          <p>
            <Name>{is.user}</Name> already has a permission in <Name>{is.vhost}</Name>. It will be replaced. The present patterns:
          </p>
          <KeyValues values={Object.fromEntries(KINDS.map((kind) => [kind, is[kind] || "nothing"]))} />
        </>
      ),
      action: "Replace the permission",
    };
  };
  const other: Column<Permission> =
    user === undefined
      ? { title: "User", sort: "user", cell: (item) => <NameLink path={["users", item.user]}>{item.user}</NameLink> }
      : { title: "Virtual host", sort: "vhost", cell: (item) => <NameLink path={["vhosts", item.vhost]}>{item.vhost}</NameLink> };
  return (
    <>
      <PagedList<Permission>
        noun="permissions"
        path={user === undefined ? "/api/vhosts/{vhost}/permissions" : "/api/users/{user}/permissions"}
        names={user === undefined ? { vhost } : { user }}
        searchable="many"
        searchLabel={user === undefined ? "user" : "virtual host"}
        version={version}
        idOf={(item) => `${item.vhost}\0${item.user}`}
        columns={[
          other,
          { title: "Configure", cell: (item) => <Pattern pattern={item.configure} /> },
          { title: "Write", cell: (item) => <Pattern pattern={item.write} /> },
          { title: "Read", cell: (item) => <Pattern pattern={item.read} /> },
          { title: "Clear", cell: (item) => <ClearButton item={item} onDone={onDone} /> },
        ]}
      />
      <Form action="Set the permission" submit={submit} confirmation={findReplaced}>
        <div class="fields">
          {user === undefined ? (
            <Field label="User">
              <input name="user" required autocomplete="off" />
            </Field>
          ) : (
            <Field label="Virtual host">
              <VhostSelect value={chosen} onChange={setChosen} />
            </Field>
          )}
          {KINDS.map((kind) => (
            <Field key={kind} label={kind[0]!.toUpperCase() + kind.slice(1)} hint="Regular expression for names; empty matches nothing">
              <input name={kind} class="code" defaultValue=".*" />
            </Field>
          ))}
        </div>
      </Form>
    </>
  );
}

export function Pattern({ pattern }: { pattern: string }) {
  return pattern ? (
    <code>
      <Name>{pattern}</Name>
    </code>
  ) : (
    <span class="muted">nothing</span>
  );
}

function ClearButton({ item, onDone }: { item: Permission; onDone: () => void }) {
  const preview = async (): Promise<Preview> => ({
    text: (
      <p>
        The user <Name>{item.user}</Name> can no longer use <Name>{item.vhost}</Name>. The user's connections to it are closed.
      </p>
    ),
    action: "Clear the permission",
  });
  const run = async (): Promise<string> => {
    await request("DELETE", urlOf(item.vhost, item.user));
    onDone();
    return "The permission was cleared.";
  };
  return <DangerButton label="Clear" title="Clear the permission?" preview={preview} run={run} />;
}
