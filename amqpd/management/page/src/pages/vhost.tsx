// One virtual host: who may enter it, its limits, whether it is protected or traced, and its end.
import { address, get, request } from "../api/client";
import { Danger, type Consequence } from "../components/dialog";
import { Form } from "../components/form";
import { Limits } from "../components/limits";
import { notify } from "../components/notices";
import { bytes, count, plural, rate } from "../components/format";
import { Permissions } from "../components/permissions";
import { Facts, Failure, Name, Section, Title } from "../components/elements";
import type { PageProps } from "../shell/pages";
import { usePoll } from "../shell/poll";
import { go, href } from "../shell/router";
import { has } from "../shell/session";
import { choose, lookForVhosts } from "../shell/preferences";
import { bodyOf, State, VhostFields, type Vhost } from "./vhosts";

interface Known {
  vhost: Vhost & { recv_oct_details?: { rate?: number }; send_oct_details?: { rate?: number } };
  limits: Record<string, number>;
}

const LIMITS = ["max-connections", "max-queues"];

export default function VhostPage({ names }: PageProps) {
  const vhost = names[0]!;
  const of = { vhost };
  const administrator = has("administrator");
  const ask = async (signal: AbortSignal): Promise<Known> => {
    const [found, limits] = await Promise.all([
      request<Vhost>("GET", address("/api/vhosts/{vhost}", of), undefined, signal),
      request<{ value: Record<string, number> }[]>("GET", address("/api/vhost-limits/{vhost}", of), undefined, signal),
    ]);
    return { vhost: found, limits: limits[0]?.value ?? {} };
  };
  const { data, error, refresh } = usePoll(ask, [vhost]);
  const again = (): void => void refresh();
  return (
    <>
      <Title kind="Virtual host" aside={administrator && data && <Delete vhost={data.vhost} />}>
        {vhost}
      </Title>
      <Failure error={error} />
      <div aria-busy={!data && error === undefined}>
        {data && (
          <>
            <Section title="About">
              <Facts
                of={[
                  ["Description", <Name>{data.vhost.description || "–"}</Name>],
                  ["State", <State of={data.vhost} />],
                  ["Queues without a type are", data.vhost.default_queue_type],
                  ["Messages", `${count(data.vhost.messages_ready)} ready, ${count(data.vhost.messages_unacknowledged)} unacked`],
                  ["In, out", `${rate(data.vhost.message_stats?.publish_details?.rate)}, ${rate(data.vhost.message_stats?.deliver_get_details?.rate)}`],
                  ["Bytes in, out", `${bytes(data.vhost.recv_oct_details?.rate)}/s, ${bytes(data.vhost.send_oct_details?.rate)}/s`],
                  ["Limits", administrator ? undefined : limitsOf(data.limits)],
                ]}
              />
              <p class="buttons left">
                <Look vhost={vhost} at="queues" />
                <Look vhost={vhost} at="exchanges" />
                <Look vhost={vhost} at="connections" />
                <Look vhost={vhost} at="topology" />
              </p>
            </Section>
            {administrator && (
              <>
                <Section title="Who may enter it">
                  <Permissions vhost={vhost} />
                </Section>
                <div class="columns">
                  <Section title="Limits">
                    <Limits of={data.limits} names={LIMITS} path="/api/vhost-limits/{vhost}/{name}" thing={of} onDone={again} />
                  </Section>
                  <Section title="Settings">
                    <Settings of={data.vhost} onDone={again} />
                  </Section>
                </div>
              </>
            )}
          </>
        )}
      </div>
    </>
  );
}

function limitsOf(limits: Record<string, number>): string {
  const found = Object.entries(limits).map(([name, value]) => `${name} ${count(value)}`);
  return found.join(", ") || "none";
}

/** The lists, of this virtual host alone. */
function Look({ vhost, at }: { vhost: string; at: string }) {
  return (
    <a href={href([at])} onClick={() => choose(vhost)}>
      Its {at}
    </a>
  );
}

function Settings({ of, onDone }: { of: Vhost; onDone: () => void }) {
  const send = async (fields: FormData): Promise<void> => {
    const body = { ...bodyOf(fields), protected_from_deletion: fields.has("protected"), tracing: fields.has("tracing") };
    await request("PUT", address("/api/vhosts/{vhost}", { vhost: of.name }), body);
    notify("The settings are saved.");
    onDone();
  };
  return (
    <Form key={JSON.stringify([of.description, of.tags, of.default_queue_type, of.protected_from_deletion, of.tracing])} action="Save the settings" send={send}>
      <VhostFields of={of} />
      <label class="check">
        <input type="checkbox" name="protected" defaultChecked={of.protected_from_deletion} /> protected from being deleted
      </label>
      <label class="check">
        <input type="checkbox" name="tracing" defaultChecked={of.tracing} /> traced: every publish and delivery is copied to amq.rabbitmq.trace, which costs time
      </label>
    </Form>
  );
}

function Delete({ vhost }: { vhost: Vhost }) {
  const names = { vhost: vhost.name };
  const look = async (): Promise<Consequence> => {
    const [now, queues, connections] = await Promise.all([
      request<Vhost>("GET", address("/api/vhosts/{vhost}", names)),
      request<{ total_count: number }>("GET", address("/api/queues/{vhost}", names, { page: 1, page_size: 1, columns: "name" })),
      get("/api/vhosts/{vhost}/connections", names, { columns: "name" }) as Promise<unknown>,
    ]);
    if (now.protected_from_deletion) {
      return { text: <p>It is protected from being deleted. Take that back in its settings first.</p>, action: "Delete", nothing: true };
    }
    const open = (connections as unknown[]).length;
    return {
      text: (
        <>
          <p>
            The virtual host <Name>{vhost.name}</Name> goes with all that is in it when you confirm, and cannot be brought back. Now that is:
          </p>
          <ul class="points">
            <li>{plural(queues.total_count, "queue")}</li>
            <li>{plural(now.messages, "message")}</li>
            <li>{plural(open, "connection")} closed</li>
          </ul>
        </>
      ),
      action: now.messages ? `Delete it with ${plural(now.messages, "message")}` : "Delete the virtual host",
    };
  };
  const run = async (): Promise<string> => {
    await request("DELETE", address("/api/vhosts/{vhost}", names));
    void lookForVhosts();
    go(["vhosts"]);
    return `The virtual host ${vhost.name} is gone.`;
  };
  return <Danger label="Delete" title="Delete the virtual host?" look={look} run={run} />;
}
