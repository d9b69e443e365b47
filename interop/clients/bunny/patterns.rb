# Bunny: the patterns of RabbitMQ's tutorials.
require_relative "common"

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
  send_all(channel, "tasks", *"0".."9", persistent: true)
  workers, bodies = Array.new(10) { done.pop }.transpose
  puts bodies.sort.join, workers.uniq.size
end

def publish_subscribe(channel)
  logs = channel.fanout("logs")
  queues = Array.new(2) { channel.queue("", exclusive: true).bind(logs) }
  logs.publish("log")
  queues.each { |queue| show(consume(queue)) }
end

def routing(channel)
  logs = channel.direct("direct_logs")
  queue = channel.queue("", exclusive: true).bind(logs, routing_key: "warning").bind(logs, routing_key: "error")
  %w[info warning error].each { |level| logs.publish(level, routing_key: level) }
  show(consume(queue), 2)
end

def topics(channel)
  logs = channel.topic("topic_logs")
  queue = channel.queue("", exclusive: true).bind(logs, routing_key: "*.critical").bind(logs, routing_key: "kern.#")
  %w[kern.critical cron.info kern.a.b cron.critical].each { |key| logs.publish(key, routing_key: key) }
  show(consume(queue), 3)
end

def fibonacci(number)
  number < 2 ? number : fibonacci(number - 1) + fibonacci(number - 2)
end

def ask(channel, reply_to)
  server = channel.connection.create_channel
  server.queue("rpc_queue").subscribe do |_delivery_info, properties, body|
    answer = fibonacci(body.to_i).to_s
    send_all(server, properties.reply_to, answer, correlation_id: properties.correlation_id)
  end
  replies = Thread::Queue.new
  consumer = Bunny::Consumer.new(channel, reply_to, "", true)
  consumer.on_delivery { |_delivery_info, properties, body| replies << "#{properties.correlation_id} #{body}" }
  channel.basic_consume_with(consumer)
  send_all(channel, "rpc_queue", "15", reply_to: reply_to, correlation_id: "1")
  puts replies.pop
end

def rpc(channel)
  ask(channel, channel.queue("", exclusive: true).name)
end

def direct_reply_to(channel)
  ask(channel, "amq.rabbitmq.reply-to")
end

run
