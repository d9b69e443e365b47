// rabbit-hole: the broker, its connections, definitions and health.
package main

import (
	"os"
	"slices"
	"strings"
	"time"

	hole "github.com/michaelklishin/rabbit-hole/v2"
	amqp "github.com/rabbitmq/amqp091-go"
)

var server = map[string]func(){
	"overview": func() {
		check(get(client.Overview()).ManagementVersion != "", "no version")
		check(get(client.Whoami()).Name == "guest", "another user")
		check(len(get(client.ListNodes())) == 1, "nodes")
	},
	"refused": func() {
		_, err := client.Overview()
		check(err != nil && strings.Contains(err.Error(), "401"), "%v", err)
	},
	"connections": func() {
		connection := get(amqp.Dial(os.Getenv("AMQP_URL")))
		get(connection.Channel())
		closed := connection.NotifyClose(make(chan *amqp.Error, 1))
		for {
			listed := get(client.ListVhostConnections(vhost))
			if len(listed) > 0 {
				done(client.CloseConnection(listed[0].Name))
				check((<-closed).Code == 320, "not closed by the operator")
				return
			}
			time.Sleep(100 * time.Millisecond) // RabbitMQ shows a connection some seconds later
		}
	},
	"definitions": func() {
		done(client.DeclareQueue(vhost, "exported", hole.QueueSettings{Durable: true}))
		exported := get(client.ListDefinitions())
		ours := slices.DeleteFunc(*exported.Queues, func(each hole.QueueInfo) bool { return each.Vhost != vhost })
		check(len(ours) == 1 && ours[0].Name == "exported", "%v", ours)
		done(client.DeleteQueue(vhost, "exported"))
		done(client.UploadDefinitions(&hole.ExportedDefinitions{RabbitVersion: exported.RabbitVersion, Queues: &ours,
			Policies: &[]hole.PolicyDefinition{}, Exchanges: &[]hole.ExchangeInfo{}, Bindings: &[]hole.BindingInfo{}}))
		check(get(client.GetQueue(vhost, "exported")).Durable, "not imported")
	},
	"health": func() {
		healthy(client.HealthCheckAlarms())
		healthy(client.HealthCheckLocalAlarms())
		healthy(client.HealthCheckVirtualHosts())
		healthy(client.HealthCheckNodeIsQuorumCritical())
		healthy(client.HealthCheckProtocolListener(hole.AMQP))
	},
}

func healthy[Status any, Check interface {
	*Status
	Ok() bool
}](status Status, err error) {
	must(err)
	check(Check(&status).Ok(), "%v", status)
}
