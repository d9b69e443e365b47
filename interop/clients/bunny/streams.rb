# Bunny: streams.
require_relative "common"

def read_stream(channel, name, arguments)
  queue = channel.queue(name, durable: true, arguments: { "x-queue-type" => "stream" })
  10.times { |n| send_all(channel, name, n.to_s, headers: { "x-stream-filter-value" => n.odd? ? "odd" : "even" }) }
  channel.prefetch(10)
  show(consume(queue, manual_ack: true, arguments: arguments), 5)
end

def stream_offset(channel)
  read_stream(channel, "stream", { "x-stream-offset" => 5 })
end

def stream_filter(channel)
  read_stream(channel, "filtered", { "x-stream-offset" => "first", "x-stream-filter" => "odd" })
end

run
