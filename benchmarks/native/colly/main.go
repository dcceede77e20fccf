// The same crawl with colly: as its documentation has it, or with a seen set of its own (`seen`).
package main

import (
	"bufio"
	"encoding/json"
	"net/url"
	"os"
	"strings"
	"sync"

	"github.com/gocolly/colly/v2"
)

type row struct {
	URL    string `json:"url"`
	Status int    `json:"status"`
	Title  string `json:"title"`
}

func main() {
	text, err := os.ReadFile(os.Args[1])
	if err != nil {
		panic(err)
	}
	seeds := strings.Fields(string(text))
	file, err := os.Create(os.Args[2])
	if err != nil {
		panic(err)
	}
	output := bufio.NewWriter(file)
	encoder := json.NewEncoder(output)
	var lock sync.Mutex

	own := len(os.Args) > 3 && os.Args[3] == "seen"
	options := []colly.CollectorOption{colly.Async(), colly.MaxBodySize(0)}
	if own {
		options = append(options, colly.AllowURLRevisit())
	}
	c := colly.NewCollector(options...)
	if err := c.Limit(&colly.LimitRule{DomainGlob: "*", Parallelism: 100}); err != nil {
		panic(err)
	}
	var seen sync.Map
	for _, seed := range seeds {
		seen.Store(seed, true)
	}
	titles := sync.Map{}
	c.OnHTML("title", func(e *colly.HTMLElement) { titles.Store(e.Request.ID, e.Text) })
	c.OnHTML("a[href]", func(e *colly.HTMLElement) {
		link := e.Attr("href")
		if !own {
			// As in its examples; AllowedDomains would not keep to the host of each page.
			if target, err := url.Parse(e.Request.AbsoluteURL(link)); err == nil && target.Host == e.Request.URL.Host {
				e.Request.Visit(link)
			}
			return
		}
		target, err := e.Request.URL.Parse(link)
		if err != nil || target.Host != e.Request.URL.Host {
			return
		}
		target.Fragment = ""
		link = target.String()
		if _, known := seen.LoadOrStore(link, true); !known {
			c.Visit(link)
		}
	})
	c.OnScraped(func(r *colly.Response) {
		title, _ := titles.LoadAndDelete(r.Request.ID)
		name, _ := title.(string)
		lock.Lock()
		defer lock.Unlock()
		encoder.Encode(row{r.Request.URL.String(), r.StatusCode, name})
	})
	for _, seed := range seeds {
		c.Visit(seed)
	}
	c.Wait()
	output.Flush()
	file.Close()
}
