# Bunny: queues, exchanges and bindings.
require_relative "common"

def declare(channel)
  queue = channel.queue("declared", durable: true)
  exchange = channel.topic("declared", durable: true)
  queue.bind(exchange, routing_key: "#")
  exchange.publish("1", routing_key: "key")
  channel.queue_declare("declared", passive: true)
  channel.exchange_declare("declared", "topic", passive: true)
  puts channel.queue_purge("declared").message_count
  queue.unbind(exchange, routing_key: "#")
  exchange.delete
  queue.delete
end

def missing(channel)
  channel.queue("missing", passive: true)
rescue Bunny::NotFound => e
  show_refusal(e)
  hello(channel.connection.create_channel)
end

def inequivalent(channel)
  channel.queue("inequivalent", durable: true)
  channel.connection.create_channel.queue("inequivalent", durable: false)
end

def float_argument(channel)
  channel.queue("float", arguments: { "x-max-length" => 10 })
  channel.connection.create_channel.queue("float", arguments: { "x-max-length" => 10.0 })
end

def queue_ttl(channel)
  queue = channel.queue("leased", arguments: { "x-expires" => 100 })
  loop do
    queue.bind("amq.fanout") # a bind does not renew the lease
    sleep 0.05
  end
end

def policy(channel)
  channel.queue("limited")
  send_all(channel, "limited", "1", "2", "3", "4")
  puts channel.queue_purge("limited").message_count
end

run
