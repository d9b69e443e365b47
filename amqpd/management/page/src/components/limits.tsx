// Forms for the limits of a user or a virtual host. An empty field removes the limit.
import { useState } from "preact/hooks";
import { apiUrl, errorText, type PathNames, request } from "../api/client";
import { formatCount } from "./format";
import { notify } from "./notices";

interface LimitsProps {
  limits: Record<string, number>;
  names: readonly string[];
  /** API path; `{name}` is the name of the limit. */
  path: string;
  pathNames: PathNames;
  onDone: () => void;
}

export function LimitForms({ limits, names, path, pathNames, onDone }: LimitsProps) {
  return (
    <ul class="key-values">
      {names.map((name) => (
        <li key={name}>
          <LimitForm name={name} value={limits[name]} url={apiUrl(path, { ...pathNames, name })} onDone={onDone} />
        </li>
      ))}
    </ul>
  );
}

function LimitForm({ name, value, url, onDone }: { name: string; value: number | undefined; url: string; onDone: () => void }) {
  const [typed, setTyped] = useState<string | null>(null);
  const [failure, setFailure] = useState("");
  const shown = typed ?? (value === undefined ? "" : String(value));
  const set = async (event: SubmitEvent): Promise<void> => {
    event.preventDefault();
    setFailure("");
    try {
      if (shown.trim() === "") await request("DELETE", url);
      else await request("PUT", url, { value: Number(shown) });
      notify(shown.trim() === "" ? `The limit ${name} was removed.` : `${name} is ${formatCount(Number(shown))}.`);
      setTyped(null);
      onDone();
    } catch (error) {
      setFailure(errorText(error));
    }
  };
  return (
    <form class="search" onSubmit={(event) => void set(event)}>
      <label class="field">
        <span>{name}</span>
        <input type="number" step={1} placeholder="no limit" value={shown} onInput={(event) => setTyped(event.currentTarget.value)} />
      </label>
      <button disabled={typed === null}>Set {name}</button>
      <span role="alert" class="bad">
        {failure}
      </span>
    </form>
  );
}
