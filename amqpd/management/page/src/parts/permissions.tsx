// What users may configure, write and read in virtual hosts: of one user in all of them, or in one of all users.
import { useState } from "preact/hooks";
import { address, request } from "../api/client";
import { vhosts } from "../shell/vhost";
import { Danger, type Consequence } from "./dialog";
import { Field, Form, text } from "./form";
import { Rows, type Column } from "./list";
import { notify } from "./notices";
import { Name, To, visible } from "./text";

export interface Permission {
  user: string;
  vhost: string;
  configure: string;
  write: string;
  read: string;
}

interface PermissionsProps {
  items: Permission[];
  /** Whose, or where: one of the two. */
  user?: string;
  vhost?: string;
  onDone: () => void;
}

const urlOf = (vhost: string, user: string): string => address("/api/permissions/{vhost}/{user}", { vhost, user });

export function Permissions({ items, user, vhost, onDone }: PermissionsProps) {
  const [chosen, setChosen] = useState(vhosts.value[0] ?? "/");
  const send = async (fields: FormData): Promise<void> => {
    const body = { configure: text(fields, "configure"), write: text(fields, "write"), read: text(fields, "read") };
    await request("PUT", urlOf(vhost ?? chosen, user ?? text(fields, "user")), body);
    notify("The permission is set.");
    onDone();
  };
  const other: Column<Permission> =
    user === undefined
      ? { title: "User", cell: (item) => <To path={["users", item.user]}>{item.user}</To> }
      : { title: "Virtual host", cell: (item) => <To path={["vhosts", item.vhost]}>{item.vhost}</To> };
  return (
    <>
      <Rows<Permission>
        what="permissions"
        items={items}
        idOf={(item) => `${item.vhost}\0${item.user}`}
        columns={[
          other,
          { title: "Configure", cell: (item) => <Pattern of={item.configure} /> },
          { title: "Write", cell: (item) => <Pattern of={item.write} /> },
          { title: "Read", cell: (item) => <Pattern of={item.read} /> },
          { title: "Clear", cell: (item) => <Clear item={item} onDone={onDone} /> },
        ]}
      />
      <Form action="Set the permission" send={send}>
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
          {["Configure", "Write", "Read"].map((kind) => (
            <Field key={kind} label={kind} hint="Names that match; empty: nothing">
              <input name={kind.toLowerCase()} class="code" defaultValue=".*" />
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

export function VhostChoice({ value, onChange, all }: { value: string; onChange: (name: string) => void; all?: string }) {
  return (
    <select value={value} onChange={(event) => onChange(event.currentTarget.value)}>
      {all !== undefined && <option value="">{all}</option>}
      {vhosts.value.map((name) => (
        <option key={name} value={name}>
          {visible(name)}
        </option>
      ))}
    </select>
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
