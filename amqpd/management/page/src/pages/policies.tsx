// Policies and operator policies. The editor previews the effect of a policy while the user types.
import { useEffect, useState } from "preact/hooks";
import { apiUrl, errorText, getIfExists, request } from "../api/client";
import { tryParseObject } from "../api/json";
import { Arguments } from "../components/arguments";
import { ConfirmDialog, DangerButton, Dialog, type Preview } from "../components/dialog";
import { KeyValues, Name, NameLink, PageTitle, showInvisible, Tabs } from "../components/elements";
import { Field } from "../components/form";
import { plural } from "../components/format";
import { notify } from "../components/notices";
import { PagedList } from "../components/paged-list";
import { Pattern } from "../components/permissions";
import { effectSummary, EffectWarnings, type PolicyEffect, PolicyEffects } from "../components/policy-effects";
import type { Column } from "../components/table";
import { VhostSelect } from "../components/vhost-select";
import { selectedVhost, vhostOptions } from "../shell/preferences";
import { hasTag } from "../shell/session";

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
const TYPING_PAUSE_MS = 400;
export default function Policies() {
  const tabs = [{ id: "policies", title: "Policies", body: () => <PolicyList kind="policies" may={hasTag("policymaker")} /> }];
  if (hasTag("administrator")) {
    tabs.push({ id: "operator", title: "Operator policies", body: () => <PolicyList kind="operator-policies" may={true} /> });
  }
  return (
    <>
      <PageTitle>Policies</PageTitle>
      <Tabs label="Kinds of policies" tabs={tabs} />
    </>
  );
}

function PolicyList({ kind, may }: { kind: Kind; may: boolean }) {
  const [edited, setEdited] = useState<Policy | null>(null);
  const [version, setVersion] = useState(0);
  const chosen = selectedVhost.value;
  const newPolicy = (): Policy => ({ vhost: chosen || (vhostOptions.value[0] ?? "/"), name: "", pattern: "", "apply-to": "all", definition: {}, priority: 0 });
  const changed = (): void => setVersion((before) => before + 1);
  const columns: Column<Policy>[] = [
    { title: "Name", sort: "name", cell: (item) => <Name>{item.name}</Name> },
    { title: "Virtual host", sort: "vhost", cell: (item) => <NameLink path={["vhosts", item.vhost]}>{item.vhost}</NameLink> },
    { title: "Pattern", sort: "pattern", cell: (item) => <Pattern pattern={item.pattern} /> },
    { title: "Applies to", sort: "apply-to", cell: (item) => item["apply-to"].replace("_", " ") },
    { title: "Definition", cell: (item) => <KeyValues values={item.definition} /> },
    { title: "Priority", sort: "priority", number: true, cell: (item) => item.priority },
  ];
  if (may) {
    columns.push({
      title: "Change",
      cell: (item) => (
        <span class="actions">
          <button onClick={() => setEdited(item)}>Edit</button>
          <DeleteButton kind={kind} policy={item} onDone={changed} />
        </span>
      ),
    });
  }
  return (
    <>
      <PagedList<Policy>
        noun={kind === "policies" ? "policies" : "operator policies"}
        path={chosen ? `/api/${kind}/{vhost}` : `/api/${kind}`}
        names={{ vhost: chosen }}
        columns={columns}
        idOf={(item) => `${item.vhost}\0${item.name}`}
        version={version}
        toolbar={may && <button onClick={() => setEdited(newPolicy())}>New policy</button>}
      />
      {edited && (
        <PolicyEditor
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

const fetchEffect = (kind: Kind, vhost: string, body: unknown, signal?: AbortSignal): Promise<PolicyEffect> =>
  request<PolicyEffect>("POST", apiUrl(`/api/amqpd/${kind}/{vhost}/preview`, { vhost: vhost }), body, signal);

function DeleteButton({ kind, policy, onDone }: { kind: Kind; policy: Policy; onDone: () => void }) {
  const preview = async (): Promise<Preview> => {
    const effect = await fetchEffect(kind, policy.vhost, { name: policy.name, clear: true, count: 20 });
    return { text: <PolicyEffects effect={effect} />, action: `Delete: ${changesText(effect)}` };
  };
  const run = async (): Promise<string> => {
    await request("DELETE", apiUrl(`/api/${kind}/{vhost}/{name}`, { vhost: policy.vhost, name: policy.name }));
    return `The policy ${showInvisible(policy.name)} was deleted.`;
  };
  return <DangerButton label="Delete" title={`Delete the policy ${showInvisible(policy.name)}?`} preview={preview} run={run} onDone={onDone} />;
}

function changesText(effect: PolicyEffect): string {
  return `${plural(effect.changed.queues, "queue")} and ${plural(effect.changed.exchanges, "exchange")} change`;
}

function PolicyEditor({ kind, policy, onClose }: { kind: Kind; policy: Policy; onClose: (done: boolean) => void }) {
  const [policyVhost, setPolicyVhost] = useState(policy.vhost);
  const [name, setName] = useState(policy.name);
  const [pattern, setPattern] = useState(policy.pattern);
  const [applyTo, setApplyTo] = useState(policy["apply-to"]);
  const [priority, setPriority] = useState(String(policy.priority));
  const [definition, setDefinition] = useState(JSON.stringify(policy.definition, null, 2));
  const [asking, setAsking] = useState(false);
  const parsed = tryParseObject(definition);
  const body = { name: name || "(new)", pattern, "apply-to": applyTo, priority: Number(priority), definition: parsed };
  const previewed = usePolicyPreview(kind, policyVhost, parsed && Object.keys(parsed).length ? body : null);
  const preview = async (): Promise<Preview> => {
    const [effect, existing] = await Promise.all([
      fetchEffect(kind, policyVhost, { ...body, name, count: 0 }),
      policy.name ? undefined : getIfExists<Policy>(apiUrl(`/api/${kind}/{vhost}/{name}`, { vhost: policyVhost, name })),
    ]);
    const verb = existing ? "Replace" : "Save";
    return {
      text: (
        <>
          {existing && <ReplacedPolicy policy={existing} />}
          <p>{effectSummary(effect)}</p>
          <EffectWarnings effect={effect} />
        </>
      ),
      action: effect.messages_over_length ? `${verb} and drop ${plural(effect.messages_over_length, "message")}` : verb,
    };
  };
  const run = async (): Promise<string> => {
    const { name: _, ...value } = body;
    await request("PUT", apiUrl(`/api/${kind}/{vhost}/{name}`, { vhost: policyVhost, name }), value);
    return `The policy ${showInvisible(name)} was saved.`;
  };
  return (
    <Dialog title={policy.name ? `Policy ${showInvisible(policy.name)}` : "New policy"} onClose={() => onClose(false)} wide>
      <form
        class="columns"
        onSubmit={(event) => {
          event.preventDefault();
          if (!parsed) notify("The definition is not a JSON object.", "bad");
          else setAsking(true);
        }}
      >
        <div class="form">
          {!policy.name && (
            <>
              <Field label="Virtual host">
                <VhostSelect value={policyVhost} onChange={setPolicyVhost} />
              </Field>
              <Field label="Name">
                <input required autocomplete="off" value={name} onInput={(event) => setName(event.currentTarget.value)} />
              </Field>
            </>
          )}
          <Field label="Pattern" hint="A regular expression that matches anywhere in the name; ^ is its start, $ its end">
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
            <Field label="Priority" hint="The matching policy with the highest priority applies">
              <input type="number" step={1} value={priority} onInput={(event) => setPriority(event.currentTarget.value)} />
            </Field>
          </div>
          <Arguments kind={kind === "policies" ? "policy" : "operator policy"} type={applyTo} label="Definition" text={definition} onChange={setDefinition} />
          <div class="buttons">
            <button class="primary">Save the policy</button>
          </div>
        </div>
        <section aria-label="Preview" aria-live="polite">
          <h3>Preview</h3>
          {parsed === null && <p class="bad">The definition is not a JSON object.</p>}
          {previewed.failure && <p class="bad">{previewed.failure}</p>}
          {previewed.effect ? <PolicyEffects effect={previewed.effect} /> : !previewed.failure && parsed && <p class="muted">A policy needs a definition with at least one key.</p>}
        </section>
      </form>
      {asking && (
        <ConfirmDialog
          title="Save the policy?"
          preview={preview}
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

function ReplacedPolicy({ policy }: { policy: Policy }) {
  return (
    <>
      <p class="warning">
        A policy <Name>{policy.name}</Name> already exists in <Name>{policy.vhost}</Name> and will be replaced. Its present values:
      </p>
      <KeyValues values={{ pattern: policy.pattern, "applies to": policy["apply-to"], priority: policy.priority, ...policy.definition }} />
    </>
  );
}

/** Request the preview of a policy shortly after the last key press. The old preview stays until the new one arrives. */
function usePolicyPreview(kind: Kind, vhost: string, body: object | null): { effect: PolicyEffect | undefined; failure: string } {
  const [result, setResult] = useState<{ effect: PolicyEffect | undefined; failure: string }>({ effect: undefined, failure: "" });
  const key = JSON.stringify([vhost, body]);
  useEffect(() => {
    if (body === null) {
      setResult({ effect: undefined, failure: "" });
      return;
    }
    const controller = new AbortController();
    const timer = setTimeout(() => {
      fetchEffect(kind, vhost, { ...body, count: 50 }, controller.signal).then(
        (effect) => setResult({ effect, failure: "" }),
        (error: unknown) => {
          if (!controller.signal.aborted) setResult({ effect: undefined, failure: errorText(error) });
        },
      );
    }, TYPING_PAUSE_MS);
    return () => {
      clearTimeout(timer);
      controller.abort();
    };
  }, [key]);
  return result;
}
