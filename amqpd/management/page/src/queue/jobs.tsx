// Jobs on a queue: move, copy, delete, redrive, rewind. A dry run counts the messages first. A running job can be
// stopped.
import { useRef, useState } from "preact/hooks";
import type { components } from "../api/schema";
import { errorText, get, post, remove } from "../api/client";
import { ConfirmDialog, type Preview } from "../components/dialog";
import { Badge, ErrorMessage, Section, showInvisible } from "../components/elements";
import { Field, fieldText, Form } from "../components/form";
import { formatCount, formatRate, formatTime, plural } from "../components/format";
import { notify } from "../components/notices";
import { DataTable } from "../components/table";
import { usePoll } from "../shell/poll";
import type { Rights } from "../shell/session";
import type { QueueNames } from "./browse";

type Job = components["schemas"]["Job"];
type Queue = components["schemas"]["Queue"];
type Action = Job["action"];

const WAIT_MS = 5000;
const ACTION_TEXTS: Record<Action, { title: string; does: string; done: string; verb: string }> = {
  move: { title: "Move", verb: "Move", does: "will be moved to", done: "moved" },
  copy: { title: "Copy", verb: "Copy", does: "will be copied to", done: "copied" },
  delete: { title: "Delete", verb: "Delete", does: "will be deleted without dead-lettering", done: "deleted" },
  redrive: { title: "Redrive dead letters", verb: "Redrive", does: "will go back to the queue in which they first died", done: "sent back" },
  rewind: { title: "Rewind acknowledged messages", verb: "Rewind", does: "will be delivered again", done: "rewound" },
};

function allowedActions(queue: Queue, rights: Rights): Action[] {
  if (!rights.read) return [];
  if (queue.type === "stream" || !rights.configure) return ["copy"];
  const all: Action[] = ["move", "copy", "delete", "redrive"];
  return typeof queue.messages_retained === "number" ? [...all, "rewind"] : all;
}

export function Jobs({ queueNames, queue, rights }: { queueNames: QueueNames; queue: Queue; rights: Rights }) {
  const { data, error, refresh } = usePoll((signal) => get("/api/queues/{vhost}/{queue}/jobs", { ...queueNames }, {}, signal), [queueNames.vhost, queueNames.queue]);
  const possible = allowedActions(queue, rights);
  return (
    <>
      {possible.length > 0 && <NewJob queueNames={queueNames} possible={possible} onBegun={() => void refresh()} />}
      <Section title="Jobs">
        <ErrorMessage error={error} />
        {data && (
          <DataTable
            noun="jobs on this queue"
            items={data.toReversed()}
            idOf={(job) => job.id}
            columns={[
              { title: "Started", cell: (job) => <span class="moment">{formatTime(job.begun)}</span> },
              { title: "Job", cell: (job) => `${ACTION_TEXTS[job.action].title}${job.dry_run ? " (dry run)" : ""}` },
              { title: "State", cell: (job) => <JobState job={job} /> },
              { title: "Done", number: true, cell: (job) => formatCount(job.done) },
              { title: "Checked", number: true, cell: (job) => formatCount(job.looked_at) },
              { title: "Skipped", cell: (job) => skippedText(job) },
              { title: "Rate", number: true, cell: (job) => formatRate(job.rate) },
              { title: "", cell: (job) => job.ended === null && <StopButton job={job} onDone={() => void refresh()} /> },
            ]}
          />
        )}
      </Section>
    </>
  );
}

function skippedText(job: Job): string {
  const reasons = Object.entries(job.left).filter(([, several]) => several > 0);
  return reasons.map(([reason, several]) => `${formatCount(several)}: ${reason}`).join("; ");
}

function JobState({ job }: { job: Job }) {
  const kind = job.state === "failed" ? "bad" : job.state === "done" ? "good" : job.state === "waiting" ? "warn" : "";
  return (
    <>
      <Badge kind={kind}>{job.state}</Badge>
      {job.reason && showInvisible(job.reason)}
    </>
  );
}

function StopButton({ job, onDone }: { job: Job; onDone: () => void }) {
  const stop = (): void => {
    remove("/api/amqpd/jobs/{job}", { job: job.id }).then(onDone, (error: unknown) => notify(errorText(error), "bad"));
  };
  return <button onClick={stop}>Stop</button>;
}

function NewJob({ queueNames, possible, onBegun }: { queueNames: QueueNames; possible: Action[]; onBegun: () => void }) {
  const [action, setAction] = useState<Action>(possible[0]!);
  const [to, setTo] = useState<"queue" | "exchange">("queue");
  const [begin, setBegin] = useState<"front" | "offset" | "time">("front");
  const [confirming, setConfirming] = useState<Record<string, unknown>>();
  const counted = useRef(0);
  const chosen = possible.includes(action) ? action : possible[0]!;
  const targeted = chosen === "move" || chosen === "copy";
  const ranged = chosen === "copy" || chosen === "rewind";
  const start = chosen === "rewind" && begin === "front" ? "offset" : begin;
  const submit = async (fields: FormData): Promise<void> => {
    const body: Record<string, unknown> = { action: chosen };
    const where = fieldText(fields, "where").trim();
    if (where) body["where"] = where;
    if (fieldText(fields, "limit")) body["limit"] = Number(fieldText(fields, "limit"));
    if (targeted && to === "queue") body["to_queue"] = fieldText(fields, "target");
    if (targeted && to === "exchange") {
      body["to_exchange"] = fieldText(fields, "target");
      if (fieldText(fields, "key")) body["routing_key"] = fieldText(fields, "key");
    }
    if (chosen === "rewind" && fieldText(fields, "target")) body["to_queue"] = fieldText(fields, "target");
    if (ranged && start === "offset") body["offset"] = Number(fieldText(fields, "offset"));
    if (ranged && start === "time") body["time"] = new Date(fieldText(fields, "time")).getTime();
    setConfirming(body);
  };
  return (
    <Section title="New job">
      <Form action="Preview" submit={submit}>
        <div class="fields">
          <Field label="Action">
            <select value={chosen} onChange={(event) => setAction(event.currentTarget.value as Action)}>
              {possible.map((each) => (
                <option key={each} value={each}>
                  {ACTION_TEXTS[each].title}
                </option>
              ))}
            </select>
          </Field>
          {targeted && (
            <Field label="To">
              <select value={to} onChange={(event) => setTo(event.currentTarget.value as "queue" | "exchange")}>
                <option value="queue">a queue</option>
                <option value="exchange">an exchange</option>
              </select>
            </Field>
          )}
          {targeted && (
            <Field label={to === "queue" ? "Queue" : "Exchange"}>
              <input name="target" required autocomplete="off" />
            </Field>
          )}
          {targeted && to === "exchange" && (
            <Field label="Routing key" hint="Empty: each message keeps its key">
              <input name="key" autocomplete="off" />
            </Field>
          )}
          {chosen === "rewind" && (
            <Field label="To queue" hint="Empty: this queue">
              <input name="target" autocomplete="off" />
            </Field>
          )}
          {ranged && (
            <Field label="From">
              <select value={start} onChange={(event) => setBegin(event.currentTarget.value as typeof begin)}>
                {chosen === "copy" && <option value="front">the front of the queue</option>}
                <option value="offset">an offset</option>
                <option value="time">a time</option>
              </select>
            </Field>
          )}
          {ranged && start === "offset" && (
            <Field label="Offset">
              <input name="offset" type="number" min={0} required defaultValue="0" />
            </Field>
          )}
          {ranged && start === "time" && (
            <Field label="Arrived at or after" hint="Your local time">
              <input name="time" type="datetime-local" step={1} required />
            </Field>
          )}
          <Field label="Selector" hint="Example: customer = 'acme'">
            <input name="where" class="code" autocomplete="off" spellcheck={false} />
          </Field>
          <Field label="Maximum number of messages" hint="Empty: no limit">
            <input name="limit" type="number" min={1} />
          </Field>
        </div>
      </Form>
      {confirming && (
        <ConfirmDialog
          title={`${ACTION_TEXTS[chosen].title}: ${queueNames.queue}`}
          preview={async (signal) => {
            const job = await dryRun(queueNames, confirming, signal);
            counted.current = job.done;
            return jobPreview(job, confirming);
          }}
          run={async () => {
            // No more messages than the preview counted, even if more have arrived.
            await post("/api/queues/{vhost}/{queue}/jobs", { ...queueNames }, { ...confirming, limit: counted.current });
            return "The job has started. The table below shows its progress.";
          }}
          onClose={(done) => {
            setConfirming(undefined);
            if (done) onBegun();
          }}
        />
      )}
    </Section>
  );
}

/** Run a job dry. Returns how many messages it would change, and which it would skip and why. */
async function dryRun(queueNames: QueueNames, asked: Record<string, unknown>, signal: AbortSignal): Promise<Job> {
  let job = await post<Job>("/api/queues/{vhost}/{queue}/jobs", { ...queueNames }, { ...asked, dry_run: true, wait_ms: WAIT_MS });
  while (job.ended === null) {
    job = await get("/api/amqpd/jobs/{job}", { job: job.id }, { wait_ms: WAIT_MS });
    if (!signal.aborted || job.ended !== null) continue;
    await remove("/api/amqpd/jobs/{job}", { job: job.id });
    break;
  }
  if (job.state === "failed") throw new Error(job.reason);
  return job;
}

function jobPreview(job: Job, asked: Record<string, unknown>): Preview {
  const words = ACTION_TEXTS[job.action];
  const target = String(asked["to_queue"] ?? asked["to_exchange"] ?? "");
  const kind = asked["to_queue"] === undefined ? "exchange" : "queue";
  const stay = skippedText(job);
  return {
    nothingToDo: job.done === 0,
    action: `${words.verb} ${plural(job.done, "message")}`,
    text: (
      <>
        <p>
          {plural(job.done, "message")} of {formatCount(job.looked_at)} checked {words.does}
          {target && ` ${kind} ${showInvisible(target)}`}.
        </p>
        {stay && <p>Skipped: {stay}.</p>}
        {job.hint && <p class="warning">{job.hint}</p>}
        <p class="muted">The dry run changed nothing. The job handles at most this number, even if more messages arrive.</p>
      </>
    ),
  };
}
