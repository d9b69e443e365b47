# Bunny: the scenarios of ../README.md.
require "bunny"

CROSSING = { "text" => "grüße", "number" => 42, "yes" => true, "array" => [1, "two"], "table" => { "a" => "b" } }.freeze
BYTES = (0..255).to_a.pack("C*")
PERSISTENT = { persistent: true }.freeze

def connect(**options)
  if ENV["CA_FILE"]
    options.merge!(tls_ca_certificates: [ENV["CA_FILE"]], verify_peer: true)
    options.merge!(tls_cert: ENV["CERT_FILE"], tls_key: ENV["KEY_FILE"]) if ENV["CERT_FILE"]
  end
  Bunny.new(ENV.fetch("AMQP_URL"), log_level: Logger::FATAL, **options).start
end

def check(condition, got = nil)
  raise "got #{got.inspect}" unless condition
end

def send_all(channel, queue, *bodies, **properties)
  bodies.each { |body| channel.default_exchange.publish(body, routing_key: queue, **properties) }
end

# Deliveries of a consumer as a queue of [delivery_info, properties, payload].
def consume(queue, **options)
  deliveries = Thread::Queue.new
  queue.subscribe(**options) { |*delivery| deliveries << delivery }
  deliveries
end

def take(deliveries, count)
  Array.new(count) { deliveries.pop }
end

def texts(messages)
  messages.map(&:last)
end

def refused(error_class, text)
  yield
rescue error_class => e
  check(e.message.include?(text), e.message)
else
  raise "not refused"
end

def connects(channel)
  queue = channel.queue("hello")
  send_all(channel, "hello", "Hello World!")
  check(texts(take(consume(queue), 1)) == ["Hello World!"])
end

def bad_password
  refused(Bunny::AuthenticationFailureError, "Authentication with") { connect }
end

def bad_vhost
  refused(Bunny::NotAllowedError, "vhost nosuch not found") { connect }
end

def heartbeat
  connection = connect(heartbeat: 1)
  sleep 4
  connects(connection.create_channel)
end

def declare(channel)
  queue = channel.queue("declared", durable: true)
  exchange = channel.topic("declared", durable: true)
  queue.bind(exchange, routing_key: "#")
  exchange.publish("1", routing_key: "key")
  channel.queue_declare("declared", passive: true)
  channel.exchange_declare("declared", "topic", passive: true)
  check(channel.queue_purge("declared").message_count == 1)
  queue.unbind(exchange, routing_key: "#")
  exchange.delete
  queue.delete
end

def missing(channel)
  refused(Bunny::NotFound, "NOT_FOUND - no queue 'missing'") { channel.queue("missing", passive: true) }
  connects(channel.connection.create_channel)
end

def inequivalent(channel)
  channel.queue("inequivalent", durable: true)
  other = channel.connection.create_channel
  refused(Bunny::PreconditionFailed, "inequivalent arg 'durable'") { other.queue("inequivalent", durable: false) }
end

def float_argument(channel)
  channel.queue("float", arguments: { "x-max-length" => 10 })
  other = channel.connection.create_channel
  refused(Bunny::PreconditionFailed, "x-max-length") { other.queue("float", arguments: { "x-max-length" => 10.0 }) }
end

def work_queue(channel)
  queue = channel.queue("tasks", durable: true)
  channel.prefetch(1)
  done = Thread::Queue.new
  2.times do
    queue.subscribe(manual_ack: true) do |delivery_info, _properties, body|
      done << [delivery_info.consumer_tag, body]
      channel.ack(delivery_info.delivery_tag)
    end
  end
  send_all(channel, "tasks", *"0".."9", **PERSISTENT)
  workers, bodies = take(done, 10).transpose
  check(workers.uniq.size == 2 && bodies.sort == [*"0".."9"], bodies)
end

def publish_subscribe(channel)
  logs = channel.fanout("logs")
  queues = Array.new(2) { channel.queue("", exclusive: true).bind(logs) }
  logs.publish("log")
  queues.each { |queue| check(texts(take(consume(queue), 1)) == ["log"]) }
end

def patterns(channel, exchange, bindings, published, expected)
  queue = channel.queue("", exclusive: true)
  bindings.each { |key| queue.bind(exchange, routing_key: key) }
  published.each { |key| exchange.publish(key, routing_key: key) }
  got = texts(take(consume(queue), expected.size))
  check(got == expected, got)
end

def routing(channel)
  patterns(channel, channel.direct("direct_logs"), %w[warning error], %w[info warning error], %w[warning error])
end

def topics(channel)
  keys = %w[kern.critical cron.info kern.a.b cron.critical]
  patterns(channel, channel.topic("topic_logs"), %w[*.critical kern.#], keys, keys.values_at(0, 2, 3))
end

def fibonacci(number)
  number < 2 ? number : fibonacci(number - 1) + fibonacci(number - 2)
end

def ask_fibonacci(channel, reply_to)
  server = channel.connection.create_channel
  server.queue("rpc_queue").subscribe do |_delivery_info, properties, body|
    result = fibonacci(body.to_i).to_s
    send_all(server, properties.reply_to, result, correlation_id: properties.correlation_id)
  end
  replies = Thread::Queue.new
  consumer = Bunny::Consumer.new(channel, reply_to, "", true)
  consumer.on_delivery { |_delivery_info, properties, body| replies << [properties.correlation_id, body] }
  channel.basic_consume_with(consumer)
  send_all(channel, "rpc_queue", "15", reply_to: reply_to, correlation_id: "1")
  check(replies.pop == %w[1 610])
end

def rpc(channel)
  ask_fibonacci(channel, channel.queue("", exclusive: true).name)
end

def direct_reply_to(channel)
  ask_fibonacci(channel, "amq.rabbitmq.reply-to")
end

def confirm(channel)
  channel.queue("confirmed", durable: true)
  channel.confirm_select
  send_all(channel, "confirmed", "safe", **PERSISTENT)
  check(channel.wait_for_confirms)
end

def confirm_batch(channel)
  queue = channel.queue("batch", durable: true)
  channel.confirm_select
  1000.times { |n| send_all(channel, "batch", n.to_s, **PERSISTENT) }
  check(channel.wait_for_confirms)
  check(queue.message_count == 1000)
end

def mandatory(channel)
  returned = Thread::Queue.new
  exchange = channel.default_exchange
  exchange.on_return { |info, _properties, _body| returned << info.reply_code }
  exchange.publish("lost", routing_key: "nowhere", mandatory: true)
  check(returned.pop == 312)
end

def tx(channel)
  queue = channel.queue("tx")
  channel.tx_select
  send_all(channel, "tx", "no")
  channel.tx_rollback
  send_all(channel, "tx", "yes")
  channel.tx_commit
  check(queue.pop.last == "yes")
end

def utf8(text) # Bunny returns strings in headers as bytes
  text.dup.force_encoding("UTF-8")
end

def headers(channel)
  sent = { "text" => "grüße", "yes" => true, "no" => false, "nothing" => nil, "int" => -5, "long" => 1 << 40,
           "double" => 1.5, "time" => Time.at(1_767_323_045), "array" => [1, "two", { "three" => 3 }],
           "table" => { "a" => { "b" => "c" } } }
  queue = channel.queue("headers")
  send_all(channel, "headers", "", headers: sent)
  got = queue.pop[1].headers
  check(got.update("text" => utf8(got["text"])) == sent, got)
end

def bodies(channel)
  queue = channel.queue("bodies")
  [0, 1, 131_064, 131_065, 1 << 20, 16 << 20].each do |size|
    send_all(channel, "bodies", "x" * size)
    check(queue.pop.last == "x" * size, size)
  end
end

def channels(channel)
  queue = channel.queue("channels")
  Array.new(100) { channel.connection.create_channel }.each { |each| send_all(each, "channels", "x") }
  take(consume(queue), 100)
end

def prefetch(channel)
  queue = channel.queue("prefetch")
  send_all(channel, "prefetch", *"0".."9")
  channel.prefetch(3)
  deliveries = consume(queue, manual_ack: true)
  got = take(deliveries, 3)
  check(queue.message_count == 7)
  channel.ack(got.last.first.delivery_tag, true)
  check(texts(take(deliveries, 3)) == %w[3 4 5])
end

def requeue(channel)
  queue = channel.queue("requeue")
  send_all(channel, "requeue", "1", "2", "3")
  got = Array.new(3) { queue.pop(manual_ack: true) }
  channel.nack(got.last.first.delivery_tag, true, true)
  got = Array.new(3) { queue.pop(manual_ack: true) }
  check(texts(got) == %w[1 2 3] && got.all? { |info, *_rest| info.redelivered? }, got)
  channel.reject(got.first.first.delivery_tag, false)
  channel.ack(got.last.first.delivery_tag, true)
  check(channel.queue_purge("requeue").message_count.zero?)
end

def cancel(channel)
  queue = channel.queue("cancel")
  queue.subscribe { abort "delivered after the cancel" }.cancel
  send_all(channel, "cancel", "stays")
  check(channel.queue_purge("cancel").message_count == 1)
end

def broker_cancel(channel)
  told = Thread::Queue.new
  queue = channel.queue("cancelled")
  queue.subscribe(consumer_tag: "reader", on_cancellation: ->(cancel) { told << cancel.consumer_tag }) { |*_delivery| }
  channel.connection.create_channel.queue_delete("cancelled")
  check(told.pop == "reader")
end

def blocked(channel)
  told = Thread::Queue.new
  channel.connection.on_blocked { |blocked| told << blocked.reason }
  channel.connection.on_unblocked { told << "unblocked" }
  send_all(channel, "nowhere", "held")
  check(told.pop == "low on memory")
  puts "ready" # the runner ends the alarm
  check(told.pop == "unblocked")
end

def reason_of_death(queue)
  take(consume(queue), 1).first[1].headers["x-death"].first["reason"]
end

def dead_letter(channel)
  dead = channel.queue("dead")
  to_dead = { "x-dead-letter-exchange" => "", "x-dead-letter-routing-key" => "dead" }
  queue = channel.queue("rejecting", arguments: to_dead)
  send_all(channel, "rejecting", "bad")
  channel.reject(queue.pop(manual_ack: true).first.delivery_tag, false)
  check(reason_of_death(dead) == "rejected")
end

def message_ttl(channel)
  expired = channel.queue("expired")
  channel.queue("ttl", arguments: { "x-dead-letter-exchange" => "", "x-dead-letter-routing-key" => "expired" })
  send_all(channel, "ttl", "short", expiration: 50)
  check(reason_of_death(expired) == "expired")
end

def queue_ttl(channel)
  queue = channel.queue("leased", arguments: { "x-expires" => 100 })
  refused(Bunny::NotFound, "NOT_FOUND") do
    loop do
      queue.bind("amq.fanout") # a bind does not renew the lease
      sleep 0.05
    end
  end
end

def priority(channel)
  queue = channel.queue("priority", arguments: { "x-max-priority" => 5 })
  [1, 5, 3].each { |level| send_all(channel, "priority", level.to_s, priority: level) }
  check(texts(take(consume(queue), 3)) == %w[5 3 1])
end

def delayed(channel)
  exchange = channel.exchange("delayed", type: "x-delayed-message", arguments: { "x-delayed-type" => "fanout" })
  queue = channel.queue("delayed").bind(exchange)
  exchange.publish("late", headers: { "x-delay" => 1000 })
  exchange.publish("soon", headers: { "x-delay" => 1 })
  check(texts(take(consume(queue), 2)) == %w[soon late])
end

def stream(channel, name, arguments, expected)
  queue = channel.queue(name, durable: true, arguments: { "x-queue-type" => "stream" })
  10.times { |n| send_all(channel, name, n.to_s, headers: { "x-stream-filter-value" => n.odd? ? "odd" : "even" }) }
  channel.prefetch(10)
  check(texts(take(consume(queue, manual_ack: true, arguments: arguments), expected.size)) == expected)
end

def stream_offset(channel)
  stream(channel, "stream", { "x-stream-offset" => 5 }, %w[5 6 7 8 9])
end

def stream_filter(channel)
  stream(channel, "filtered", { "x-stream-offset" => "first", "x-stream-filter" => "odd" }, %w[1 3 5 7 9])
end

def policy(channel)
  channel.queue("limited")
  send_all(channel, "limited", "1", "2", "3", "4")
  check(channel.queue_purge("limited").message_count == 2)
end

# The client itself connects again, and restores its consumers.
def reconnect
  channel = connect(network_recovery_interval: 0.1, recovery_attempts: 600).create_channel
  queue = channel.queue("kept", durable: true)
  channel.confirm_select
  send_all(channel, "kept", "kept", **PERSISTENT)
  channel.wait_for_confirms
  deliveries = consume(queue, manual_ack: true)
  deliveries.pop
  puts "ready" # the runner kills the broker and starts it again
  delivery_info, _properties, body = deliveries.pop
  check(delivery_info.redelivered? && body == "kept", body)
end

def write(channel)
  channel.queue("crossing")
  send_all(channel, "crossing", BYTES, content_type: "text/plain", message_id: "7", headers: CROSSING)
end

def read(channel)
  _delivery_info, properties, body = channel.queue("crossing").pop
  properties.headers["text"] = utf8(properties.headers["text"])
  check(body.b == BYTES && properties.headers == CROSSING, properties)
  check(properties.content_type == "text/plain" && properties.message_id == "7", properties)
end

$stdout.sync = true
name = ARGV.fetch(0)
if name == "version"
  puts Bunny::VERSION
elsif %w[bad-password bad-vhost heartbeat reconnect].include?(name)
  send(name.tr("-", "_"))
  puts "pass"
else
  connection = connect
  name = "connects" if %w[connect tls client-certificate].include?(name)
  send(name.tr("-", "_"), connection.create_channel)
  connection.close
  puts "pass"
end
