// The choice of a virtual host: the first hundred at once, of more a list in pages that the broker searches.
import { signal } from "@preact/signals";
import { lookForVhosts, vhostCount, vhosts } from "../shell/preferences";
import { setQuery } from "../shell/router";
import { Dialog } from "./dialog";
import { List } from "./paged-list";
import { count } from "./format";
import { Name, visible } from "./elements";

interface VhostChoiceProps {
  value: string;
  onChange: (name: string) => void;
  /** What stands for all of them; without it one must be chosen. */
  all?: string;
}

const MORE = "\0";
/** Who gets the name that is chosen in the list; null: the list is closed. */
const chooser = signal<((name: string) => void) | null>(null);

export function VhostChoice({ value, onChange, all }: VhostChoiceProps) {
  const offered = vhosts.value;
  const names = value && !offered.includes(value) ? [value, ...offered] : offered;
  const changed = (select: HTMLSelectElement): void => {
    if (select.value !== MORE) return onChange(select.value);
    select.value = value;
    chooser.value = onChange;
  };
  return (
    <select value={value} onFocus={() => void lookForVhosts().catch(() => undefined)} onChange={(event) => changed(event.currentTarget)}>
      {all !== undefined && <option value="">{all}</option>}
      {names.map((name) => (
        <option key={name} value={name}>
          {visible(name)}
        </option>
      ))}
      {vhostCount.value > offered.length && <option value={MORE}>{`Search all ${count(vhostCount.value)} …`}</option>}
    </select>
  );
}

/** The list, once in the page: a choice stands within labels and forms, which a dialog with a search must not. */
export function VhostSearch() {
  const choose = chooser.value;
  if (!choose) return null;
  const close = (): void => {
    chooser.value = null;
    setQuery({ "choice.q": undefined, "choice.page": undefined, "choice.size": undefined, "choice.regex": undefined });
  };
  return (
    <Dialog title="Choose a virtual host" onClose={close}>
      <List<{ name: string }>
        what="virtual hosts"
        path="/api/vhosts"
        query={{ columns: "name" }}
        as="choice."
        pageSize={25}
        idOf={(item) => item.name}
        columns={[{ title: "Name", cell: (item) => <Choose name={item.name} onChoose={() => (choose(item.name), close())} /> }]}
      />
    </Dialog>
  );
}

function Choose({ name, onChoose }: { name: string; onChoose: () => void }) {
  return (
    <button onClick={onChoose}>
      <Name>{name}</Name>
    </button>
  );
}
