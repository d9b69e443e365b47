// Actions on several selected queues: purge, delete, move messages. They send one request per queue.
import { useRef, useState } from "preact/hooks";
import type { components } from "../api/schema";
import { apiUrl, errorText, get, post, remove } from "../api/client";
import { ConfirmDialog, DangerButton, Dialog, type Preview, type ReportProgress } from "../components/dialog";
import { showInvisible } from "../components/elements";
import { Field, fieldText, Form } from "../components/form";
import { plural } from "../components/format";
import { fetchAll } from "../components/paged-list";

type Queue = components["schemas"]["Queue"];
type Job = components["schemas"]["Job"];

const WAIT_MS = 5000;
const FAILURES_SHOWN_MAX = 5;

const idOf = (queue: Queue): string => `${queue.vhost}\0${queue.name}`;
const namesOf = (queue: Queue) => ({ vhost: queue.vhost, queue: queue.name });

async function fetchCurrent(selected: Queue[]): Promise<Queue[]> {
  const wanted = new Set(selected.map(idOf));
  const vhosts = [...new Set(selected.map((queue) => queue.vhost))];
  const columns = "name,vhost,type,messages,messages_ready,consumers";
  const lists = await Promise.all(vhosts.map((vhost) => fetchAll<Queue>(apiUrl("/api/queues/{vhost}", { vhost }, { columns }))));
  return lists.flat().filter((queue) => wanted.has(idOf(queue)));
}

/** Apply `act` to each queue and continue after errors. Returns a summary; throws it as Error if a queue failed. */
async function forEachQueue(queues: Queue[], verb: string, done: string, act: (queue: Queue) => Promise<unknown>, reportProgress: ReportProgress): Promise<string> {
  const failed: string[] = [];
  for (const [index, queue] of queues.entries()) {
    reportProgress(`${verb} ${index + 1} of ${queues.length}: ${showInvisible(queue.name)}`);
    try {
      await act(queue);
    } catch (error) {
      failed.push(`${showInvisible(queue.name)}: ${errorText(error)}`);
    }
  }
  const doneText = `${plural(queues.length - failed.length, "queue is", "queues are")} ${done}.`;
  if (!failed.length) return doneText;
  const moreText = failed.length > FAILURES_SHOWN_MAX ? `; and ${failed.length - FAILURES_SHOWN_MAX} more` : "";
  throw new Error(`${doneText} ${failed.length} failed: ${failed.slice(0, FAILURES_SHOWN_MAX).join("; ")}${moreText}`);
}

const sum = (queues: Queue[], name: "messages" | "messages_ready" | "consumers"): number => queues.reduce((all, queue) => all + (queue[name] ?? 0), 0);

export function BulkActions({ selected, onDone }: { selected: Queue[]; onDone: () => void }) {
  const [moving, setMoving] = useState(false);
  const found = useRef<Queue[]>([]);
  const fetchQueues = async (): Promise<Queue[]> => (found.current = (await fetchCurrent(selected)).filter((queue) => queue.type !== "stream"));
  return (
    <>
      <DangerButton
        label="Purge"
        title={`Purge ${plural(selected.length, "queue")}?`}
        preview={async () => {
          const queues = await fetchQueues();
          const ready = sum(queues, "messages_ready");
          return {
            nothingToDo: ready === 0,
            action: `Purge ${plural(ready, "message")}`,
            text: (
              <p>
                {ready ? `Purge deletes ${plural(ready, "ready message")} of ${plural(queues.length, "queue")} without dead-lettering. It deletes all messages that are ready when you confirm, also new ones.` : "The queues have no ready messages."}
                {queues.length < selected.length && " Streams keep their messages."}
              </p>
            ),
          };
        }}
        run={(reportProgress) => forEachQueue(found.current, "Purging", "purged", (queue) => remove("/api/queues/{vhost}/{queue}/contents", namesOf(queue)), reportProgress)}
        onDone={onDone}
      />
      <button onClick={() => setMoving(true)}>Move messages</button>
      <DangerButton
        label="Delete"
        title={`Delete ${plural(selected.length, "queue")}?`}
        preview={async () => {
          const queues = (found.current = await fetchCurrent(selected));
          const [messages, consumers] = [sum(queues, "messages"), sum(queues, "consumers")];
          return {
            nothingToDo: queues.length === 0,
            action: messages ? `Delete with ${plural(messages, "message")}` : `Delete ${plural(queues.length, "queue")}`,
            text: (
              <p>
                {plural(queues.length, "queue is", "queues are")} deleted with {messages ? `${plural(messages, "message")}, without dead-lettering` : "their bindings. All are empty; a queue that gets a message before you confirm stays"}.
                {consumers ? ` The broker cancels ${plural(consumers, "consumer")}.` : ""}
              </p>
            ),
          };
        }}
        // A message that arrived after the preview is not deleted.
        run={(reportProgress) => forEachQueue(found.current, "Deleting", "deleted", (queue) => remove("/api/queues/{vhost}/{queue}", namesOf(queue), { "if-empty": !queue.messages, "if-unused": !queue.consumers }), reportProgress)}
        onDone={onDone}
      />
      {moving && <MoveDialog selected={selected} fetchQueues={fetchQueues} onClose={(done) => (setMoving(false), done && onDone())} />}
    </>
  );
}

function MoveDialog({ selected, fetchQueues, onClose }: { selected: Queue[]; fetchQueues: () => Promise<Queue[]>; onClose: (done: boolean) => void }) {
  const [kind, setKind] = useState<"queue" | "exchange">("queue");
  const [body, setBody] = useState<Record<string, string>>();
  const found = useRef<{ queue: Queue; count: number }[]>([]);
  const preview = async (): Promise<Preview> => {
    const queues = (await fetchQueues()).filter((queue) => queue.messages_ready && queue.name !== body!["to_queue"]);
    found.current = [];
    for (const queue of queues) found.current.push({ queue, count: (await runJob(queue, { ...body, dry_run: true })).done });
    const all = found.current.reduce((sum, each) => sum + each.count, 0);
    return {
      nothingToDo: all === 0,
      action: `Move ${plural(all, "message")}`,
      text: (
        <p>
          {all ? `${plural(all, "message")} of ${plural(queues.length, "queue")} will be moved to ${kind} ${showInvisible(body!["to_queue"] ?? body!["to_exchange"]!)}. The job moves at most this number.` : "There are no ready messages to move."}
        </p>
      ),
    };
  };
  const run = (reportProgress: ReportProgress): Promise<string> => {
    const count = new Map(found.current.map((each) => [each.queue, each.count]));
    const moved = [...count].filter(([, several]) => several > 0).map(([queue]) => queue);
    return forEachQueue(moved, "Moving", "moved", (queue) => runJob(queue, { ...body, limit: count.get(queue) }), reportProgress);
  };
  return (
    <Dialog title={`Move the messages of ${plural(selected.length, "queue")}`} onClose={() => onClose(false)}>
      <Form
        action="Preview"
        submit={async (fields) => setBody({ [kind === "queue" ? "to_queue" : "to_exchange"]: fieldText(fields, "target"), ...(kind === "exchange" && fieldText(fields, "key") ? { routing_key: fieldText(fields, "key") } : {}) })}
      >
        <Field label="To">
          <select value={kind} onChange={(event) => setKind(event.currentTarget.value as typeof kind)}>
            <option value="queue">a queue</option>
            <option value="exchange">an exchange</option>
          </select>
        </Field>
        <Field label={kind === "queue" ? "Queue" : "Exchange"} hint="In the virtual host of each queue">
          <input name="target" required autocomplete="off" />
        </Field>
        {kind === "exchange" && (
          <Field label="Routing key" hint="Empty: each message keeps its key">
            <input name="key" autocomplete="off" />
          </Field>
        )}
      </Form>
      {body && <ConfirmDialog title={`Move the messages of ${plural(selected.length, "queue")}?`} preview={preview} run={run} onClose={(done) => (setBody(undefined), done && onClose(true))} />}
    </Dialog>
  );
}

/** Run a job on one queue to its end. Throws Error if it fails. */
async function runJob(queue: Queue, body: Record<string, unknown>): Promise<Job> {
  let found = await post<Job>("/api/queues/{vhost}/{queue}/jobs", namesOf(queue), { action: "move", ...body, wait_ms: WAIT_MS });
  while (found.ended === null) found = await get("/api/amqpd/jobs/{job}", { job: found.id }, { wait_ms: WAIT_MS });
  if (found.state === "failed") throw new Error(found.reason);
  return found;
}
