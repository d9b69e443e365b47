# Bunny: connections.
require_relative "common"

def connect
  connection = open_connection
  hello(connection.create_channel)
  connection.close
end

alias tls connect
alias client_certificate connect

def bad_password
  open_connection
rescue Bunny::AuthenticationFailureError
  puts "pass" # the error has no text of the broker
end

def bad_vhost
  open_connection
rescue Bunny::NotAllowedError => e
  puts e.message.include?("vhost nosuch not found") ? "pass" : e.message
end

def heartbeat
  connection = open_connection(heartbeat: 1)
  sleep 4
  hello(connection.create_channel)
end

def channels
  connection = open_connection
  opened = Array.new(100) { connection.create_channel }
  deliveries = consume(opened.first.queue("channels"))
  opened.each { |channel| send_all(channel, "channels", "x") }
  puts Array.new(100) { deliveries.pop }.size
end

def blocked
  connection = open_connection
  told = Thread::Queue.new
  connection.on_blocked { |blocked| told << blocked.reason }
  connection.on_unblocked { told << "unblocked" }
  send_all(connection.create_channel, "nowhere", "held")
  puts told.pop
  puts "ready" # the runner ends the alarm
  puts told.pop
end

# The client itself connects again, and restores its consumers.
def reconnect
  channel = open_connection(network_recovery_interval: 0.1, recovery_attempts: 600).create_channel
  queue = channel.queue("kept", durable: true)
  channel.confirm_select
  send_all(channel, "kept", "kept", persistent: true)
  channel.wait_for_confirms
  deliveries = consume(queue, manual_ack: true)
  deliveries.pop
  puts "ready" # the runner kills the broker and starts it again
  delivery_info, _properties, body = deliveries.pop
  puts body if delivery_info.redelivered?
end

run(connected: false)
