# How the programs of Bunny connect, send and receive. `SCENARIO` and output: ../README.md.
require "bunny"

def open_connection(**options)
  if ENV["CA_FILE"]
    options.merge!(tls_ca_certificates: [ENV["CA_FILE"]], verify_peer: true)
    options.merge!(tls_cert: ENV["CERT_FILE"], tls_key: ENV["KEY_FILE"]) if ENV["CERT_FILE"]
  end
  Bunny.new(ENV.fetch("AMQP_URL"), log_level: Logger::FATAL, **options).start
end

def send_all(channel, queue, *bodies, **properties)
  bodies.each { |body| channel.default_exchange.publish(body, routing_key: queue, **properties) }
end

# Return the deliveries of a consumer as a queue of [delivery_info, properties, payload].
def consume(queue, **options)
  deliveries = Thread::Queue.new
  queue.subscribe(**options) { |*delivery| deliveries << delivery }
  deliveries
end

def show(deliveries, count = 1)
  count.times { puts deliveries.pop.last }
end

def hello(channel)
  queue = channel.queue("hello")
  send_all(channel, "hello", "Hello World!")
  show(consume(queue))
end

def show_refusal(error)
  puts "#{error.channel_close.reply_code} #{error.message}"
end

# Do the scenario, and print the error if the broker refuses it.
def run(connected: true)
  $stdout.sync = true
  name = ARGV.fetch(0).tr("-", "_")
  if name == "version"
    puts Bunny::VERSION
  elsif connected
    connection = open_connection
    send(name, connection.create_channel)
    connection.close
  else
    send(name)
  end
rescue Bunny::ChannelLevelException => e
  show_refusal(e)
end
