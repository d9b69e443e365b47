// rabbit-hole: the scenarios for the HTTP API of ../README.md.
package main

import (
	"fmt"
	"net/http"
	"net/url"
	"os"
	"runtime/debug"
	"strings"

	hole "github.com/michaelklishin/rabbit-hole/v2"
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
	if run := objects[name]; run != nil {
		run()
	} else {
		server[name]()
	}
	fmt.Println("pass")
}
