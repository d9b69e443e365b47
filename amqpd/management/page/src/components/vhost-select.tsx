// Selection of a virtual host: the first hundred as options, a searchable list for more.
import { signal } from "@preact/signals";
import { loadVhosts, vhostCount, vhostOptions } from "../shell/preferences";
import { setQuery } from "../shell/router";
import { Dialog } from "./dialog";
import { Name, showInvisible } from "./elements";
import { formatCount } from "./format";
import { PagedList } from "./paged-list";

interface VhostSelectProps {
  value: string;
  onChange: (name: string) => void;
  /** Label of the option for all virtual hosts; without it there is no such option. */
  all?: string;
}

const SEARCH_ALL = "\0";
/** Receives the name that is chosen in the list; null while the list is closed. */
const onVhostFound = signal<((name: string) => void) | null>(null);

export function VhostSelect({ value, onChange, all }: VhostSelectProps) {
  const options = vhostOptions.value;
  const names = value && !options.includes(value) ? [value, ...options] : options;
  const changed = (select: HTMLSelectElement): void => {
    if (select.value !== SEARCH_ALL) return onChange(select.value);
    select.value = value;
    onVhostFound.value = onChange;
  };
  return (
    <select value={value} onFocus={() => void loadVhosts().catch(() => undefined)} onChange={(event) => changed(event.currentTarget)}>
      {all !== undefined && <option value="">{all}</option>}
      {names.map((name) => (
        <option key={name} value={name}>
          {showInvisible(name)}
        </option>
      ))}
      {vhostCount.value > options.length && <option value={SEARCH_ALL}>{`Search all ${formatCount(vhostCount.value)} …`}</option>}
    </select>
  );
}

/** The list of all virtual hosts, once in the page. A select is often inside a label or a form, where a dialog with a search is not allowed. */
export function VhostSearchDialog() {
  const choose = onVhostFound.value;
  if (!choose) return null;
  const close = (): void => {
    onVhostFound.value = null;
    setQuery({ "choice.q": undefined, "choice.page": undefined, "choice.size": undefined, "choice.regex": undefined });
  };
  return (
    <Dialog title="Choose a virtual host" onClose={close}>
      <PagedList<{ name: string }>
        noun="virtual hosts"
        path="/api/vhosts"
        query={{ columns: "name" }}
        queryPrefix="choice."
        pageSize={25}
        idOf={(item) => item.name}
        columns={[{ title: "Name", cell: (item) => <VhostButton name={item.name} onChoose={() => (choose(item.name), close())} /> }]}
      />
    </Dialog>
  );
}

function VhostButton({ name, onChoose }: { name: string; onChoose: () => void }) {
  return (
    <button onClick={onChoose}>
      <Name>{name}</Name>
    </button>
  );
}
