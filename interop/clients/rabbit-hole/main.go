// rabbit-hole: the scenarios for the HTTP API of ../README.md.
package main

import (
	"fmt"
	"net/http"
	"net/url"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	hole "github.com/michaelklishin/rabbit-hole/v2"
	amqp "github.com/rabbitmq/amqp091-go"
)

var (
	notOffered = map[string]string{
		"messages": "rabbit-hole publishes and gets no messages",
		"scrape":   "rabbit-hole reads JSON only",
	}
	vhost  string
	client *hole.Client
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func get[T any](value T, err error) T {
	must(err)
	return value
}

func done(answer *http.Response, err error) {
	must(err)
	check(answer.StatusCode < 300, "%s", answer.Status)
	must(answer.Body.Close())
}

func check(condition bool, text string, values ...any) {
	if !condition {
		panic(fmt.Sprintf(text, values...))
	}
}

func healthy[Status any, Check interface {
	*Status
	Ok() bool
}](status Status, err error) {
	must(err)
	check(Check(&status).Ok(), "%v", status)
}

// isGone tells whether an answer is 404.
func isGone[T any](_ T, err error) bool {
	answer, isAnswer := err.(hole.ErrorResponse)
	return isAnswer && answer.StatusCode == 404
}

var scenarios = map[string]func(){
	"overview": func() {
		check(get(client.Overview()).ManagementVersion != "", "no version")
		check(get(client.Whoami()).Name == "guest", "another user")
		check(len(get(client.ListNodes())) == 1, "nodes")
	},
	"refused": func() {
		_, err := client.Overview()
		check(err != nil && strings.Contains(err.Error(), "401"), "%v", err)
	},
	"vhosts": func() {
		made := vhost + "/made"
		done(client.PutVhost(made, hole.VhostSettings{Description: "by rabbit-hole"}))
		check(get(client.GetVhost(made)).Description == "by rabbit-hole", "description")
		done(client.DeleteVhost(made))
		check(isGone(client.GetVhost(made)), "not deleted")
	},
	"users": func() {
		done(client.PutUser("hole-made", hole.UserSettings{Password: "secret", Tags: hole.UserTags{"monitoring"}}))
		done(client.UpdatePermissionsIn(vhost, "hole-made", hole.Permissions{Configure: "^c", Write: "^w", Read: ".*"}))
		check(get(client.GetPermissionsIn(vhost, "hole-made")).Configure == "^c", "permissions")
		check(get(client.GetUser("hole-made")).Tags[0] == "monitoring", "tags")
		done(client.DeleteUser("hole-made"))
		check(isGone(client.GetUser("hole-made")), "not deleted")
	},
	"exchanges": func() {
		done(client.DeclareExchange(vhost, "made", hole.ExchangeSettings{Type: "topic", Durable: true}))
		found := get(client.GetExchange(vhost, "made"))
		check(found.Type == "topic" && found.Durable, "%v", found)
		done(client.DeleteExchange(vhost, "made"))
		check(isGone(client.GetExchange(vhost, "made")), "not deleted")
	},
	"queues": func() {
		arguments := map[string]any{"x-max-length": 5}
		done(client.DeclareQueue(vhost, "made", hole.QueueSettings{Durable: true, Arguments: arguments}))
		found := get(client.GetQueue(vhost, "made"))
		check(found.Durable && found.Arguments["x-max-length"] == 5.0, "%v", found)
		done(client.PurgeQueue(vhost, "made"))
		done(client.DeleteQueue(vhost, "made"))
		check(isGone(client.GetQueue(vhost, "made")), "not deleted")
	},
	"bindings": func() {
		done(client.DeclareQueue(vhost, "bound", hole.QueueSettings{Durable: true}))
		binding := hole.BindingInfo{Source: "amq.topic", Destination: "bound", DestinationType: "queue", RoutingKey: "a.#"}
		done(client.DeclareBinding(vhost, binding))
		found := get(client.ListQueueBindingsBetween(vhost, "amq.topic", "bound"))
		check(len(found) == 1 && found[0].RoutingKey == "a.#", "%v", found)
		done(client.DeleteBinding(vhost, found[0]))
		check(len(get(client.ListQueueBindingsBetween(vhost, "amq.topic", "bound"))) == 0, "not deleted")
	},
	"policies": func() {
		definition := hole.PolicyDefinition{"max-length": 3}
		done(client.PutPolicy(vhost, "made", hole.Policy{Pattern: "^p", ApplyTo: "queues", Priority: 2, Definition: definition}))
		found := get(client.GetPolicy(vhost, "made"))
		check(found.Priority == 2 && found.Definition["max-length"] == 3.0, "%v", found)
		done(client.DeletePolicy(vhost, "made"))
		check(isGone(client.GetPolicy(vhost, "made")), "not deleted")
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

// version returns the version of the library in this program.
func version() string {
	info, _ := debug.ReadBuildInfo()
	for _, module := range info.Deps {
		if strings.HasPrefix(module.Path, "github.com/michaelklishin/rabbit-hole") {
			return module.Version
		}
	}
	return ""
}

func main() {
	name := os.Args[1]
	if name == "version" {
		fmt.Println(version())
		return
	}
	if reason, found := notOffered[name]; found {
		fmt.Println("not offered:", reason)
		return
	}
	defer func() {
		if problem := recover(); problem != nil {
			fmt.Println("error:", problem)
			os.Exit(1)
		}
	}()
	address := get(url.Parse(os.Getenv("HTTP_URL")))
	password, _ := address.User.Password()
	client = get(hole.NewClient("http://"+address.Host, address.User.Username(), password))
	vhost = strings.TrimPrefix(get(url.Parse(os.Getenv("AMQP_URL"))).Path, "/")
	scenarios[name]()
	fmt.Println("pass")
}
