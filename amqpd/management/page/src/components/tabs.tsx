// Parts of a page of which one is open; which one stands in the address (`tab`).
import type { ComponentChildren } from "preact";
import { href, place } from "../shell/router";

export interface Tab {
  id: string;
  title: string;
  body: () => ComponentChildren;
}

/** Links, as each tab has an address; the first is open unless another is named. */
export function Tabs({ tabs, label }: { tabs: Tab[]; label: string }) {
  const said = place.value.query.get("tab");
  const open = tabs.find((tab) => tab.id === said) ?? tabs[0];
  return (
    <>
      <nav class="tabs" aria-label={label}>
        {tabs.map((tab, index) => (
          <a key={tab.id} href={href(place.value.path, { tab: index ? tab.id : undefined })} aria-current={tab === open ? "page" : undefined}>
            {tab.title}
          </a>
        ))}
      </nav>
      <div key={open?.id} class="stack">{open?.body()}</div>
    </>
  );
}
