// rabbit-hole: vhosts, users, exchanges, queues, bindings and policies.
package main

import hole "github.com/michaelklishin/rabbit-hole/v2"

var objects = map[string]func(){
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
}

// isGone tells whether an answer is 404.
func isGone[T any](_ T, err error) bool {
	answer, isAnswer := err.(hole.ErrorResponse)
	return isAnswer && answer.StatusCode == 404
}
