# Bunny: acks, dead letters, priorities and delays.
require_relative "common"

def prefetch(channel)
  queue = channel.queue("prefetch")
  send_all(channel, "prefetch", *"0".."9")
  channel.prefetch(3)
  deliveries = consume(queue, manual_ack: true)
  got = Array.new(3) { deliveries.pop }
  puts queue.message_count
  channel.ack(got.last.first.delivery_tag, true)
  show(deliveries, 3)
end

def requeue(channel)
  queue = channel.queue("requeue")
  send_all(channel, "requeue", "1", "2", "3")
  got = Array.new(3) { queue.pop(manual_ack: true) }
  channel.nack(got.last.first.delivery_tag, true, true)
  got = Array.new(3) { queue.pop(manual_ack: true) }
  got.each { |delivery_info, _properties, body| puts "#{body} #{delivery_info.redelivered?}" }
  channel.reject(got.first.first.delivery_tag, false)
  channel.ack(got.last.first.delivery_tag, true)
  puts channel.queue_purge("requeue").message_count
end

def cancel(channel)
  channel.queue("cancel").subscribe { abort "delivered after the cancel" }.cancel
  send_all(channel, "cancel", "stays")
  puts channel.queue_purge("cancel").message_count
end

def broker_cancel(channel)
  told = Thread::Queue.new
  on_cancellation = ->(cancel) { told << cancel.consumer_tag }
  channel.queue("cancelled").subscribe(consumer_tag: "cancelled", on_cancellation: on_cancellation) { |*delivery| puts delivery }
  channel.connection.create_channel.queue_delete("cancelled")
  puts told.pop
end

def declare_dead_lettering(channel, name, target)
  arguments = { "x-dead-letter-exchange" => "", "x-dead-letter-routing-key" => target }
  [channel.queue(name, arguments: arguments), channel.queue(target)]
end

def show_reason(queue)
  _delivery_info, properties, _body = consume(queue).pop
  puts properties.headers["x-death"].first["reason"]
end

def dead_letter(channel)
  queue, dead = declare_dead_lettering(channel, "rejecting", "dead")
  send_all(channel, "rejecting", "bad")
  channel.reject(queue.pop(manual_ack: true).first.delivery_tag, false)
  show_reason(dead)
end

def message_ttl(channel)
  _queue, expired = declare_dead_lettering(channel, "ttl", "expired")
  send_all(channel, "ttl", "short", expiration: 50)
  show_reason(expired)
end

def priority(channel)
  queue = channel.queue("priority", arguments: { "x-max-priority" => 5 })
  [1, 5, 3].each { |level| send_all(channel, "priority", level.to_s, priority: level) }
  show(consume(queue), 3)
end

def delayed(channel)
  exchange = channel.exchange("delayed", type: "x-delayed-message", arguments: { "x-delayed-type" => "fanout" })
  queue = channel.queue("delayed").bind(exchange)
  exchange.publish("late", headers: { "x-delay" => 1000 })
  exchange.publish("soon", headers: { "x-delay" => 1 })
  show(consume(queue), 2)
end

run
