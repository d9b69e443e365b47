// Getting messages as a consumer does: they are taken out of the queue, and put back or not.
import { useRef, useState } from "preact/hooks";
import { get, post } from "../api/client";
import { ConfirmDialog } from "../components/dialog";
import { Section } from "../components/elements";
import { Field } from "../components/form";
import { plural } from "../components/format";
import { type DisplayedMessage, MessageView, payloadPreview } from "../components/message";
import type { QueueNames } from "./browse";

const ACK_MODES = {
  ack_requeue_true: "put back, marked as redelivered",
  ack_requeue_false: "removed (acked)",
  reject_requeue_true: "rejected and put back, counted as a failed delivery",
  reject_requeue_false: "rejected: dead-lettered or dropped",
} as const;
type AckMode = keyof typeof ACK_MODES;

export function GetMessages({ queueNames }: { queueNames: QueueNames }) {
  const [mode, setMode] = useState<AckMode>("ack_requeue_true");
  const [messageCount, setMessageCount] = useState(1);
  const [confirming, setConfirming] = useState(false);
  const [messages, setMessages] = useState<DisplayedMessage[]>();
  const confirmedCount = useRef(0);
  const preview = async () => {
    const queue = await get("/api/queues/{vhost}/{queue}", { ...queueNames }, { columns: "messages_ready" });
    const available = (confirmedCount.current = Math.min(messageCount, queue.messages_ready ?? 0));
    const messagesText = plural(available, "message");
    const effect = {
      ack_requeue_true: `${messagesText} at the front will be taken and put back, marked as redelivered. Consumers may notice this; browsing has no such effect.`,
      ack_requeue_false: `${messagesText} at the front will be removed from the queue. Only this page will still have them, with at most 1 MiB of each.`,
      reject_requeue_true: `${messagesText} at the front will be rejected and put back. The delivery count rises; a queue with a delivery limit may dead-letter them.`,
      reject_requeue_false: `${messagesText} at the front will be removed: dead-lettered if the queue has a dead-letter exchange, otherwise dropped.`,
    }[mode];
    return { text: <p>{available ? effect : "The queue has no ready messages."}</p>, action: mode.endsWith("true") ? `Get ${messagesText}` : `Remove ${messagesText}`, nothing: available === 0 };
  };
  const run = async () => {
    // No more messages than the preview counted, even if more have arrived.
    const got = await post<DisplayedMessage[]>("/api/queues/{vhost}/{queue}/get", { ...queueNames }, { count: confirmedCount.current, ackmode: mode, encoding: "auto", truncate: 1 << 20 });
    setMessages(got);
    return `Got ${plural(got.length, "message")}.`;
  };
  return (
    <Section title="Get messages as a consumer">
      <div class="fields">
        <Field label="Number of messages">
          <input type="number" min={1} max={1000} value={messageCount} onInput={(event) => setMessageCount(Math.min(1000, Math.max(1, Number(event.currentTarget.value) || 1)))} />
        </Field>
        <Field label="Ack mode">
          <select value={mode} onChange={(event) => setMode(event.currentTarget.value as AckMode)}>
            {Object.entries(ACK_MODES).map(([name, words]) => (
              <option key={name} value={name}>
                {words}
              </option>
            ))}
          </select>
        </Field>
      </div>
      <div class="buttons">
        <button class="danger" onClick={() => setConfirming(true)}>
          Get
        </button>
      </div>
      {confirming && <ConfirmDialog title={`Get messages from ${queueNames.queue}?`} preview={preview} run={run} onClose={() => setConfirming(false)} />}
      {messages?.map((each, index) => (
        <details key={index} open={messages.length === 1}>
          <summary>
            Message {index + 1}: <code>{payloadPreview(each)}</code>
          </summary>
          <MessageView message={each} vhost={queueNames.vhost} queue={queueNames.queue} />
        </details>
      ))}
    </Section>
  );
}
