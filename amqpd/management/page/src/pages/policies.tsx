// Policies and operator policies: what there is, and a new or another one with what it would do, told while it is written.
import { useEffect, useState } from "preact/hooks";
import { address, found, request, sentence } from "../api/client";
import { Arguments, objectOf } from "../components/arguments";
import { Confirm, Danger, Dialog, type Consequence } from "../components/dialog";
import { Field } from "../components/form";
import { List, type Column } from "../components/paged-list";
import { notify } from "../components/notices";
import { plural } from "../components/format";
import { Pattern } from "../components/permissions";
import { Effects, summary, type Effect } from "../components/policy-effects";
import { Tabs } from "../components/tabs";
import { Name, Table, Title, To, visible } from "../components/elements";
import { VhostChoice } from "../components/vhost-select";
import { has } from "../shell/session";
import { vhost, vhosts } from "../shell/preferences";

interface Policy {
  vhost: string;
  name: string;
  pattern: string;
  "apply-to": string;
  definition: Record<string, unknown>;
  priority: number;
}
type Kind = "policies" | "operator-policies";

const APPLY_TO = ["all", "queues", "classic_queues", "quorum_queues", "streams", "exchanges"];
const TYPED_MS = 400;
export default function Policies() {
  const tabs = [{ id: "policies", title: "Policies", body: () => <Listed kind="policies" may={has("policymaker")} /> }];
  if (has("administrator")) {
    tabs.push({ id: "operator", title: "Operator policies", body: () => <Listed kind="operator-policies" may={true} /> });
  }
  return (
    <>
      <Title>Policies</Title>
      <Tabs label="Kinds of policies" tabs={tabs} />
    </>
  );
}

function Listed({ kind, may }: { kind: Kind; may: boolean }) {
  const [edited, setEdited] = useState<Policy | null>(null);
  const [version, setVersion] = useState(0);
  const chosen = vhost.value;
  const fresh = (): Policy => ({ vhost: chosen || (vhosts.value[0] ?? "/"), name: "", pattern: "", "apply-to": "all", definition: {}, priority: 0 });
  const changed = (): void => setVersion((before) => before + 1);
  const columns: Column<Policy>[] = [
    { title: "Name", sort: "name", cell: (item) => <Name>{item.name}</Name> },
    { title: "Virtual host", sort: "vhost", cell: (item) => <To path={["vhosts", item.vhost]}>{item.vhost}</To> },
    { title: "Pattern", sort: "pattern", cell: (item) => <Pattern of={item.pattern} /> },
    { title: "Applies to", sort: "apply-to", cell: (item) => item["apply-to"].replace("_", " ") },
    { title: "Definition", cell: (item) => <Table of={item.definition} /> },
    { title: "Priority", sort: "priority", number: true, cell: (item) => item.priority },
  ];
  if (may) {
    columns.push({
      title: "Change",
      cell: (item) => (
        <span class="actions">
          <button onClick={() => setEdited(item)}>Edit</button>
          <Delete kind={kind} policy={item} onDone={changed} />
        </span>
      ),
    });
  }
  return (
    <>
      <List<Policy>
        what={kind === "policies" ? "policies" : "operator policies"}
        path={chosen ? `/api/${kind}/{vhost}` : `/api/${kind}`}
        names={{ vhost: chosen }}
        columns={columns}
        idOf={(item) => `${item.vhost}\0${item.name}`}
        version={version}
        aside={may && <button onClick={() => setEdited(fresh())}>New policy</button>}
      />
      {edited && (
        <Edit
          kind={kind}
          policy={edited}
          onClose={(done) => {
            setEdited(null);
            if (done) changed();
          }}
        />
      )}
    </>
  );
}

const preview = (kind: Kind, of: string, body: unknown, signal?: AbortSignal): Promise<Effect> =>
  request<Effect>("POST", address(`/api/amqpd/${kind}/{vhost}/preview`, { vhost: of }), body, signal);

function Delete({ kind, policy, onDone }: { kind: Kind; policy: Policy; onDone: () => void }) {
  const look = async (): Promise<Consequence> => {
    const effect = await preview(kind, policy.vhost, { name: policy.name, clear: true, count: 20 });
    return { text: <Effects of={effect} />, action: `Delete it: ${changesText(effect)}` };
  };
  const run = async (): Promise<string> => {
    await request("DELETE", address(`/api/${kind}/{vhost}/{name}`, { vhost: policy.vhost, name: policy.name }));
    return `The policy ${visible(policy.name)} is gone.`;
  };
  return <Danger label="Delete" title={`Delete the policy ${visible(policy.name)}?`} look={look} run={run} onDone={onDone} />;
}

function changesText(effect: Effect): string {
  return `${plural(effect.changed.queues, "queue")} and ${plural(effect.changed.exchanges, "exchange")} change`;
}

/** The fields, and beside them what the policy would do as it stands there. */
function Edit({ kind, policy, onClose }: { kind: Kind; policy: Policy; onClose: (done: boolean) => void }) {
  const [of, setOf] = useState(policy.vhost);
  const [name, setName] = useState(policy.name);
  const [pattern, setPattern] = useState(policy.pattern);
  const [applyTo, setApplyTo] = useState(policy["apply-to"]);
  const [priority, setPriority] = useState(String(policy.priority));
  const [definition, setDefinition] = useState(JSON.stringify(policy.definition, null, 2));
  const [asking, setAsking] = useState(false);
  const parsed = objectOf(definition);
  const body = { name: name || "(new)", pattern, "apply-to": applyTo, priority: Number(priority), definition: parsed };
  const told = useEffectOf(kind, of, parsed && Object.keys(parsed).length ? body : null);
  const look = async (): Promise<Consequence> => {
    const [effect, there] = await Promise.all([
      preview(kind, of, { ...body, name, count: 0 }),
      policy.name ? undefined : found<Policy>(address(`/api/${kind}/{vhost}/{name}`, { vhost: of, name })),
    ]);
    const verb = there ? "Replace it" : "Save it";
    return {
      text: (
        <>
          {there && <Replaced of={there} />}
          <p>{summary(effect)}</p>
          <Losses of={effect} />
        </>
      ),
      action: effect.messages_over_length ? `${verb} and drop ${plural(effect.messages_over_length, "message")}` : verb,
    };
  };
  const run = async (): Promise<string> => {
    const { name: _, ...value } = body;
    await request("PUT", address(`/api/${kind}/{vhost}/{name}`, { vhost: of, name }), value);
    return `The policy ${visible(name)} holds.`;
  };
  return (
    <Dialog title={policy.name ? `Policy ${visible(policy.name)}` : "New policy"} onClose={() => onClose(false)} wide>
      <form
        class="columns"
        onSubmit={(event) => {
          event.preventDefault();
          if (!parsed) notify("The definition is no JSON object.", "bad");
          else setAsking(true);
        }}
      >
        <div class="form">
          {!policy.name && (
            <>
              <Field label="Virtual host">
                <VhostChoice value={of} onChange={setOf} />
              </Field>
              <Field label="Name">
                <input required autocomplete="off" value={name} onInput={(event) => setName(event.currentTarget.value)} />
              </Field>
            </>
          )}
          <Field label="Pattern" hint="A regular expression, looked for anywhere in the name; ^ and $ tie it down">
            <input class="code" autocomplete="off" spellcheck={false} value={pattern} onInput={(event) => setPattern(event.currentTarget.value)} />
          </Field>
          <div class="fields">
            <Field label="Applies to">
              <select value={applyTo} onChange={(event) => setApplyTo(event.currentTarget.value)}>
                {APPLY_TO.map((each) => (
                  <option key={each} value={each}>
                    {each.replace("_", " ")}
                  </option>
                ))}
              </select>
            </Field>
            <Field label="Priority" hint="The highest one that matches holds">
              <input type="number" step={1} value={priority} onInput={(event) => setPriority(event.currentTarget.value)} />
            </Field>
          </div>
          <Arguments kind={kind === "policies" ? "policy" : "operator policy"} type={applyTo} label="Definition" text={definition} onChange={setDefinition} />
          <div class="buttons">
            <button class="main">Save the policy</button>
          </div>
        </div>
        <section aria-label="What it would do" aria-live="polite">
          <h3>What it would do</h3>
          {parsed === null && <p class="bad">The definition is no JSON object.</p>}
          {told.failure && <p class="bad">{told.failure}</p>}
          {told.effect ? <Effects of={told.effect} /> : !told.failure && parsed && <p class="soft">It needs a definition with at least one key.</p>}
        </section>
      </form>
      {asking && (
        <Confirm
          title="Save the policy?"
          look={look}
          run={run}
          onClose={(done) => {
            setAsking(false);
            if (done) onClose(true);
          }}
        />
      )}
    </Dialog>
  );
}

function Replaced({ of }: { of: Policy }) {
  return (
    <>
      <p class="warning">
        There is a policy <Name>{of.name}</Name> in <Name>{of.vhost}</Name> already; this one takes its place. So far:
      </p>
      <Table of={{ pattern: of.pattern, "applies to": of["apply-to"], priority: of.priority, ...of.definition }} />
    </>
  );
}

export function Losses({ of }: { of: Effect }) {
  return (
    <>
      {of.messages_over_length > 0 && <p class="warning">{plural(of.messages_over_length, "message")} over the new length are dropped, or dead-lettered, at once.</p>}
      {of.messages_with_shorter_ttl > 0 && <p class="warning">{plural(of.messages_with_shorter_ttl, "message")} get a shorter time to live and may expire.</p>}
      {of.unused_queues_that_expire > 0 && <p class="warning">{plural(of.unused_queues_that_expire, "queue")} without consumers will be deleted after the time of expires.</p>}
    </>
  );
}

/** Asked while one types, a moment after the last key; the answer before stays until the next one. */
function useEffectOf(kind: Kind, of: string, body: object | null): { effect: Effect | undefined; failure: string } {
  const [told, setTold] = useState<{ effect: Effect | undefined; failure: string }>({ effect: undefined, failure: "" });
  const key = JSON.stringify([of, body]);
  useEffect(() => {
    if (body === null) {
      setTold({ effect: undefined, failure: "" });
      return;
    }
    const broken = new AbortController();
    const timer = setTimeout(() => {
      preview(kind, of, { ...body, count: 50 }, broken.signal).then(
        (effect) => setTold({ effect, failure: "" }),
        (error: unknown) => {
          if (!broken.signal.aborted) setTold({ effect: undefined, failure: sentence(error) });
        },
      );
    }, TYPED_MS);
    return () => {
      clearTimeout(timer);
      broken.abort();
    };
  }, [key]);
  return told;
}
