//! What a crawl costs at least in Rust: fetch, parse, follow links on the same host, store URL and title, no more.
//!
//!     floor SEEDS OUTPUT tree|stream        an html5ever tree, or lol_html's stream of tags

use std::collections::HashSet;
use std::io::Write;
use std::sync::{Arc, Mutex};

use html5ever::tendril::TendrilSink;
use markup5ever_rcdom::{Handle, NodeData, RcDom};
use tokio::sync::mpsc;
use url::Url;

#[global_allocator]
static GLOBAL: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Default)]
struct Found {
    title: String,
    hrefs: Vec<String>,
}

fn tree(body: &[u8]) -> Found {
    let dom = html5ever::parse_document(RcDom::default(), Default::default()).from_utf8().one(body);
    let mut found = Found::default();
    let mut waiting: Vec<Handle> = vec![dom.document.clone()];
    while let Some(node) = waiting.pop() {
        if let NodeData::Element { name, attrs, .. } = &node.data {
            if &*name.local == "a" {
                let attrs = attrs.borrow();
                found.hrefs.extend(attrs.iter().filter(|one| &*one.name.local == "href").map(|one| one.value.to_string()));
            } else if &*name.local == "title" && found.title.is_empty() {
                for child in node.children.borrow().iter() {
                    if let NodeData::Text { contents } = &child.data {
                        found.title.push_str(&contents.borrow());
                    }
                }
            }
        }
        waiting.extend(node.children.borrow().iter().rev().cloned());
    }
    found
}

fn stream(body: &[u8]) -> Found {
    let (mut title, mut hrefs) = (String::new(), Vec::new());
    let mut rewriter = lol_html::HtmlRewriter::new(
        lol_html::Settings {
            element_content_handlers: vec![
                lol_html::element!("a[href]", |one| {
                    hrefs.extend(one.get_attribute("href"));
                    Ok(())
                }),
                lol_html::text!("title", |part| {
                    title.push_str(part.as_str());
                    Ok(())
                }),
            ],
            ..lol_html::Settings::new()
        },
        |_: &[u8]| (),
    );
    rewriter.write(body).unwrap();
    rewriter.end().unwrap();
    Found { title, hrefs }
}

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let seeds: Vec<String> = std::fs::read_to_string(&arguments[1]).unwrap().lines().map(str::to_string).collect();
    let output = Arc::new(Mutex::new(std::io::BufWriter::new(std::fs::File::create(&arguments[2]).unwrap())));
    let extract: fn(&[u8]) -> Found = if arguments[3] == "tree" { tree } else { stream };
    let seen: Arc<Mutex<HashSet<String, ahash::RandomState>>> = Arc::new(Mutex::new(seeds.iter().cloned().collect()));
    let client = reqwest::Client::new();
    let (sender, mut finished) = mpsc::unbounded_channel::<Vec<String>>();
    let (mut waiting, mut running) = (seeds, 0);
    while !waiting.is_empty() || running > 0 {
        let Some(address) = (if running < 100 { waiting.pop() } else { None }) else {
            waiting.extend(finished.recv().await.unwrap());
            running -= 1;
            continue;
        };
        running += 1;
        let (client, seen, output, sender) = (client.clone(), seen.clone(), output.clone(), sender.clone());
        tokio::spawn(async move {
            let answer = client.get(&address).send().await.unwrap();
            let status = answer.status().as_u16();
            let body = answer.bytes().await.unwrap();
            let found = extract(&body);
            let base = Url::parse(&address).unwrap();
            let mut fresh = Vec::new();
            for href in &found.hrefs {
                if let Ok(mut link) = base.join(href) {
                    link.set_fragment(None);
                    if link.host() == base.host() && link.port() == base.port() {
                        fresh.push(String::from(link));
                    }
                }
            }
            {
                let mut seen = seen.lock().unwrap();
                fresh.retain(|link| seen.insert(link.clone()));
            }
            let row = serde_json::json!({ "url": address, "status": status, "title": found.title });
            writeln!(output.lock().unwrap(), "{row}").unwrap();
            sender.send(fresh).unwrap();
        });
    }
    output.lock().unwrap().flush().unwrap();
}
