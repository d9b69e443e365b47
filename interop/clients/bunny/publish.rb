# Bunny: confirms, returns, transactions, headers and bodies.
require_relative "common"

CROSSING = { "text" => "grüße", "number" => 42, "yes" => true, "array" => [1, "two"], "table" => { "a" => "b" } }.freeze
BYTES = (0..255).to_a.pack("C*")

def publish_confirmed(channel, name, bodies)
  queue = channel.queue(name, durable: true)
  channel.confirm_select
  send_all(channel, name, *bodies, persistent: true)
  puts channel.wait_for_confirms ? queue.message_count : "nack"
end

def confirm(channel)
  publish_confirmed(channel, "confirmed", ["safe"])
end

def confirm_batch(channel)
  publish_confirmed(channel, "batch", "1".."1000")
end

def mandatory(channel)
  returned = Thread::Queue.new
  exchange = channel.default_exchange
  exchange.on_return { |info, _properties, _body| returned << info.reply_code }
  exchange.publish("lost", routing_key: "nowhere", mandatory: true)
  puts returned.pop
end

def tx(channel)
  queue = channel.queue("tx")
  channel.tx_select
  send_all(channel, "tx", "no")
  channel.tx_rollback
  send_all(channel, "tx", "yes")
  channel.tx_commit
  puts queue.pop.last
end

def received(queue) # Bunny returns strings in headers as bytes
  delivery = queue.pop
  delivery[1].headers["text"].force_encoding("UTF-8")
  delivery
end

def headers(channel)
  sent = CROSSING.merge("no" => false, "nothing" => nil, "int" => -5, "long" => 1 << 40, "double" => 1.5,
                        "time" => Time.at(1_767_323_045), "deep" => [{ "a" => { "b" => ["c"] } }])
  queue = channel.queue("headers")
  send_all(channel, "headers", "", headers: sent)
  got = received(queue)[1].headers
  puts got == sent ? "pass" : got
end

def bodies(channel)
  queue = channel.queue("bodies")
  [0, 1, 131_064, 131_065, 1 << 20, 16 << 20].each do |size|
    send_all(channel, "bodies", "x" * size)
    puts queue.pop.last.count("x")
  end
end

def write(channel)
  channel.queue("crossing")
  send_all(channel, "crossing", BYTES, content_type: "text/plain", message_id: "7", headers: CROSSING)
  puts "pass"
end

def read(channel)
  _delivery_info, properties, body = received(channel.queue("crossing"))
  got = [body.b, properties.headers, properties.content_type, properties.message_id]
  puts got == [BYTES, CROSSING, "text/plain", "7"] ? "pass" : got.inspect
end

run
