// The choice of a virtual host: the first hundred at once, of more a list in pages that the broker searches.
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
  /** What stands for all of them; without it one must be chosen. */
  all?: string;
}

const SEARCH_ALL = "\0";
/** Who gets the name that is chosen in the list; null: the list is closed. */
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

/** The list, once in the page: a choice stands within labels and forms, which a dialog with a search must not. */
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
        what="virtual hosts"
        path="/api/vhosts"
        query={{ columns: "name" }}
        as="choice."
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
