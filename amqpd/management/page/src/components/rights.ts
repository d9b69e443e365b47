// What the user may do with one queue or exchange, as the broker says: nobody is offered what would be refused.
import type { components } from "../api/schema";
import { get } from "../api/client";
import { usePoll } from "../shell/poll";

export type Rights = components["schemas"]["Rights"];
const NONE: Rights = { configure: false, write: false, read: false };

export function useRights(kind: "queue" | "exchange", vhost: string, name: string): Rights {
  const { data } = usePoll((signal) => get("/api/amqpd/rights/{vhost}", { vhost }, { [kind]: name || "amq.default" }, signal), [kind, vhost, name]);
  return data ?? NONE;
}
